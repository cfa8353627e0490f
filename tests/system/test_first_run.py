"""The commands of the tutorial "first run", in its order, on a run of a few steps in a folder of its own.

`make demo` stands for the run that it starts, which would train for minutes. The run is stopped by SIGINT, as
Ctrl-C does.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.pages import ROOT, blocks, commands

PAGE = "docs/tutorial/first-run.md"
BIN = Path(sys.executable).parent
SMALL = {
    "rollout.prompts_per_batch": 8,
    "rollout.group_size": 6,
    "rollout.pre_rollouts": 2,
    "rollout.shards": 2,
    "learner.steps": 6,
    "learner.checkpoint_every": 2,
    "evaluation.path": "null",
    "telemetry.http_port": 0,
}
pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900)]


def words(command: str) -> list[str]:
    """As the reader types it, from a folder without a checkout; a run is small."""
    found = command.replace(".venv/bin/hora", str(BIN / "hora"))
    found = found.replace("deploy/presets/tiny.yaml", str(ROOT / "deploy/presets/tiny.yaml"))
    small = [w for key, value in SMALL.items() for w in ("-s", f"{key}={value}")]
    return [*found.split(), *(small if " run " in found else [])]


def test_the_first_run_is_watched_stopped_resumed_and_read(tmp_path: Path) -> None:
    demo, monitor, resume, report, audit = [c for b in blocks(PAGE) if b.kind == "sh" for c in commands(b)]
    assert demo == "make demo"
    start = words(".venv/bin/hora run deploy/presets/tiny.yaml --fresh")
    with (tmp_path / "run.log").open("wb") as log:
        first = subprocess.Popen(
            start, cwd=tmp_path, stdout=log, stderr=log, env={**os.environ, "COLUMNS": "200"}
        )
    try:
        steps = tmp_path / "runs" / "tiny" / "steps.jsonl"
        deadline = time.monotonic() + 400
        while not steps.exists() or steps.read_text().count("\n") < 2:
            assert first.poll() is None, (tmp_path / "run.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert monitor == ".venv/bin/hora monitor runs/tiny"
        assert "step" in run(tmp_path, f"{monitor} --once")
        first.send_signal(signal.SIGINT)
        assert first.wait(120) == 130
    finally:
        if first.poll() is None:
            first.kill()
    assert "--resume" in (tmp_path / "run.log").read_text().splitlines()[-1]
    run(tmp_path, resume)
    assert [json.loads(line)["step"] for line in steps.read_text().splitlines()] == list(range(6))
    run(tmp_path, report)
    assert (tmp_path / "report" / "report.html").exists()
    assert "none missing, none doubled" in run(tmp_path, audit)


def run(folder: Path, command: str) -> str:
    done = subprocess.run(words(command), cwd=folder, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout
