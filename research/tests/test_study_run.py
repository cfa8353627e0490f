"""What becomes of a study's processes and folders, with processes that stand for its runs."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
import yaml
from rich.console import Console

from hora_rl.common.errors import ConfigError
from hora_rl.common.load import dump_yaml, load
from hora_rl.deploy.checks import machine
from hora_rl.deploy.checks.memory import run_target
from hora_rl.deploy.machine.record import RunFile
from research.study import command
from research.study.cells import Cell, cells, load_study
from research.study.stack_cells import is_finished, run_cells
from tests.support.checks import H200

STUDY = {"name": "mini", "base": "tiny", "seeds": [0], "arms": {"grpo": {"allocation.rule": "uniform"}}}

# A study whose cells do nothing but wait, and write their process id to a file.
WAITING = """
import subprocess, sys
from pathlib import Path
from research.study import stack_cells

NOTE = Path(sys.argv[2])

def start(cell, out):
    run = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    NOTE.write_text(str(run.pid))
    return run

stack_cells.start_cell = start
sys.argv[1:] = [sys.argv[1], "--out", str(Path(sys.argv[2]).parent / "out"), "--parallel", "1"]
from hora_rl.deploy.cli import main
from research.__main__ import app
main(app)
"""


def written(tmp_path: Path) -> str:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(STUDY, sort_keys=False))
    return str(path)


def made(tmp_path: Path, out: Path, state: str) -> Cell:
    """The study's only cell, run in `out` as far as `state`."""
    [cell] = cells(load_study(written(tmp_path)), out)
    file = RunFile(cell.folder(out))
    file.start(cell.name, os.getpid())
    if state != "running":
        file.end(state)  # type: ignore[arg-type]
    (cell.folder(out) / "config.yaml").write_text(dump_yaml(cell.config))
    return cell


@pytest.mark.system
def test_no_cell_outlives_a_study_whose_terminal_closes(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    command = [sys.executable, "-c", WAITING, written(tmp_path), str(note)]
    study = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        deadline = time.monotonic() + 60
        while not (note.exists() and note.read_text()):
            assert study.poll() is None, study.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        cell = psutil.Process(int(note.read_text()))
        study.send_signal(signal.SIGHUP)
        said, _ = study.communicate(timeout=60)
    finally:
        study.kill()
    try:
        assert study.returncode == 130, said
        assert "the same command continues the study" in said.lower()
        assert not cell.is_running()
    finally:
        if cell.is_running():
            cell.kill()


def test_a_finished_cell_may_have_been_moved_and_one_that_goes_on_may_not(tmp_path: Path) -> None:
    for state in ("finished", "stopped"):
        here, there = tmp_path / state, tmp_path / f"{state}-moved"
        made(tmp_path, here, state)
        shutil.move(here, there)
        [cell] = cells(load_study(written(tmp_path)), there)
        if state == "finished":
            assert is_finished(cell, there)
        else:
            with pytest.raises(ConfigError, match=r"was run with other settings \(run.folder: "):
                is_finished(cell, there)


def test_a_failed_cell_has_the_reason_of_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = load_study(written(tmp_path))
    [cell] = cells(plan, tmp_path)
    log = tmp_path / "logs" / f"{cell.name}.log"

    def start(cell: Cell, out: Path) -> subprocess.Popen[bytes]:
        with log.open("wb") as file:
            return subprocess.Popen([sys.executable, "-c", "raise ValueError('worse')"], stderr=file)

    monkeypatch.setattr("research.study.stack_cells.start_cell", start)
    failed = run_cells(plan, [cell], [cell], tmp_path, 1, Console(quiet=True))
    assert failed == [(cell, f"ValueError: worse; log: {log}")]


def test_the_cells_of_a_study_share_this_machines_cards_as_a_run_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Cell] = []

    def never(plan: object, todo: list[Cell], every: Sequence[Cell], *_: object) -> list[tuple[Cell, str]]:
        seen.extend(every)
        raise KeyboardInterrupt

    monkeypatch.setattr(machine, "gpus", lambda: [H200] * 8)
    monkeypatch.setattr(command, "run_cells", never)
    with pytest.raises(SystemExit):
        command.study(written(tmp_path), tmp_path / "out", None)
    [cell] = seen
    run = run_target(load("tiny", ["allocation.rule=uniform"])).config
    assert cell.config.generator.replicas + cell.config.learner.workers == 8
    assert cell.config.generator.replicas == run.generator.replicas
