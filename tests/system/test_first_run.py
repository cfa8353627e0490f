"""What a new user does first: the commands of the tutorial "first run", in its order, on a run of a few steps
in a folder of its own, and the training of what `hora init` writes.

`make demo` stands for the run that it starts, which would train for minutes. The run is stopped by SIGINT, as
Ctrl-C does.
"""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.jsonl import lines
from tests.support.pages import ROOT, blocks, commands
from tests.support.ports import until
from tests.system.conftest import HORA, SMALL, hora, options

PAGE = "docs/tutorial/first-run.md"
SIZE = {**SMALL, "learner.steps": 6}
pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900)]


def words(command: str) -> list[str]:
    """As the reader types it, from a folder without a checkout; a run is small."""
    program, *found = command.replace("deploy/presets", str(ROOT / "deploy/presets")).split()
    assert program == ".venv/bin/hora"
    return [*found, *(options(SIZE) if found[0] == "run" else [])]


def test_the_first_run_is_watched_stopped_resumed_and_read(tmp_path: Path) -> None:
    demo, monitor, resume, report, audit = [c for b in blocks(PAGE) if b.kind == "sh" for c in commands(b)]
    assert demo == "make demo"
    start = [HORA, *words(".venv/bin/hora run deploy/presets/tiny.yaml --fresh")]
    with (tmp_path / "run.log").open("wb") as log:
        first = subprocess.Popen(
            start, cwd=tmp_path, stdout=log, stderr=log, env={**os.environ, "COLUMNS": "200"}
        )
    try:
        steps = tmp_path / "runs" / "tiny" / "steps.jsonl"
        said = (tmp_path / "run.log").read_text
        until(lambda: steps.exists() and steps.read_text().count("\n") >= 2, said, 400, 0.2, first)
        assert monitor == ".venv/bin/hora monitor runs/tiny"
        assert "step" in hora(*words(f"{monitor} --once"), cwd=tmp_path).stdout
        first.send_signal(signal.SIGINT)
        assert first.wait(120) == 130
    finally:
        if first.poll() is None:
            first.kill()
    assert "--resume" in (tmp_path / "run.log").read_text().splitlines()[-1]
    hora(*words(resume), cwd=tmp_path)
    assert [s["step"] for s in lines(steps)] == list(range(6))
    hora(*words(report), cwd=tmp_path)
    assert (tmp_path / "report" / "report.html").exists()
    assert "none missing, none doubled" in hora(*words(audit), cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("task", "files", "reward"), [("mine", 3, "first_reward:score"), ("code", 2, "code_tests")]
)
def test_an_own_task_is_made_checked_and_trained(task: str, files: int, reward: str, tmp_path: Path) -> None:
    assert len(hora("init", "first.yaml", "--task", task, cwd=tmp_path).stdout.split()) == files
    free = ("-s", "telemetry.http_port=0")
    assert "valid. 64 prompts" in hora("check", "first.yaml", *free, cwd=tmp_path).stdout
    hora("run", "first.yaml", "-s", "learner.steps=2", *free, cwd=tmp_path)
    steps = lines(tmp_path / "runs" / "first" / "steps.jsonl")
    assert len(steps) == 2
    assert f"reward/{reward}" in steps[0]
