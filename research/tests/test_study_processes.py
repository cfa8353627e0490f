"""Processes and folders of a study that ends in the middle: no cell outlives it, and no second one works in
its folder."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
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
from hora_rl.deploy.machine.signals import GRACE_S
from research.study import command
from research.study.cells import Cell, cells, load_study
from research.study.stack_cells import is_finished, run_cells
from research.tasks.build import build
from tests.support.checks import H200

HORA = str(Path(sys.executable).with_name("hora"))
ARMS = {"grpo": {"allocation.rule": "uniform"}, "hora": {"allocation.rule": "hit_utility"}}
MINI = {"name": "mini", "base": "tiny", "seeds": [0], "arms": {"grpo": ARMS["grpo"]}}
# A study whose cells do nothing but wait, and write their process id to a file.
WAITING = """
import subprocess, sys
from pathlib import Path
from research.study import stack_cells

NOTE = Path(sys.argv[2])

def start(cell, out):
    run = subprocess.Popen(["sleep", "300"], start_new_session=True)
    NOTE.write_text(str(run.pid))
    return run

stack_cells.start_cell = start
sys.argv[1:] = [sys.argv[1], "--out", str(Path(sys.argv[2]).parent / "out"), "--parallel", "1"]
from hora_rl.deploy.cli import main
from research.__main__ import app
main(app)
"""


def written(folder: Path, study: dict) -> str:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(study, sort_keys=False))
    return str(path)


def started(words: Sequence[str], has_begun: Callable[[], bool], limit_s: float) -> subprocess.Popen[str]:
    """The study that `words` start, once its cells have begun."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    study = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    try:
        deadline = time.monotonic() + limit_s
        while not has_begun():
            assert study.poll() is None, study.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.1)
    except BaseException:  # whatever failed, no cell may outlive the test
        study.terminate()
        study.wait(150)
        raise
    return study


def assert_gone(family: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


def assert_stops(
    study: subprocess.Popen[str], number: int, family: list[psutil.Process], limit_s: float = GRACE_S
) -> None:
    """The study ends in time, in order and with all that it started."""
    try:
        study.send_signal(number)
        message, _ = study.communicate(timeout=limit_s)
    finally:
        study.kill()
    assert study.returncode == 130, message
    assert "nothing is left running. The same command continues the study" in " ".join(message.split())
    assert "Traceback" not in message
    assert_gone(family)


@pytest.mark.system
@pytest.mark.timeout(200)
def test_a_second_study_is_refused_and_no_cell_outlives_one_whose_terminal_closes(tmp_path: Path) -> None:
    note, file = tmp_path / "pid", written(tmp_path, MINI)
    words = [sys.executable, "-c", WAITING, file, str(note)]
    study = started(words, lambda: note.exists() and bool(note.read_text()), 60)
    try:
        again = [HORA, "study", file, "--out", str(tmp_path / "out")]
        second = subprocess.run(again, capture_output=True, text=True, timeout=60)
        says = f"another `hora study` (process {study.pid}) works there"
        assert (second.returncode, says in " ".join(second.stderr.split())) == (1, True), second.stderr
    finally:
        assert_stops(study, signal.SIGHUP, [psutil.Process(int(note.read_text()))])


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of a study of two cells that train for hours, in its folder."""
    folder = tmp_path_factory.mktemp("study")
    build("many", folder / "many", steps=3)
    settings = {
        "model.path": str(folder / "many" / "model"),
        "data.path": str(folder / "many" / "trained.jsonl"),
        "evaluation.path": None,
        "rollout.prompts_per_batch": 2,
        "rollout.group_size": 4,
        "rollout.pre_rollouts": 2,
        "rollout.shards": 1,
        "rollout.max_staleness": 0,
        "learner.steps": 100_000,
    }
    design = {"watched": "trained", "every": 50_000}
    file = written(folder, {**MINI, "base": "many", "arms": ARMS, "set": settings, "design": design})
    return [HORA, "study", file, "--loop", "--parallel", "2", "--out", str(folder / "out")]


def training(loop: list[str]) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """The study, both of whose cells have trained a step, with the processes that it started."""
    groups = [Path(loop[-1]) / f"{arm}-seed0" / "groups.jsonl" for arm in ARMS]
    for file in groups:
        file.unlink(missing_ok=True)
    study = started(loop, lambda: all(f.exists() and f.stat().st_size for f in groups), 120)
    return study, psutil.Process(study.pid).children(recursive=True)


@pytest.mark.system
@pytest.mark.timeout(300)
def test_no_worker_outlives_a_killed_study(loop: list[str]) -> None:
    study, family = training(loop)
    study.kill()
    study.communicate()
    assert len(family) >= 2
    assert_gone(family)


@pytest.mark.system
@pytest.mark.timeout(300)
def test_a_study_in_the_loop_that_is_told_to_end_does_so_in_time(loop: list[str]) -> None:
    study, family = training(loop)
    assert_stops(study, signal.SIGTERM, family)


@pytest.mark.system
@pytest.mark.timeout(300)
def test_a_worker_that_is_killed_fails_its_cell_alone(loop: list[str]) -> None:
    study, family = training(loop)
    victim, other = (process for process in family if "spawn_main" in " ".join(process.cmdline()))
    victim.kill()
    time.sleep(3.0)
    assert other.is_running()
    assert other.status() != psutil.STATUS_ZOMBIE
    assert_stops(study, signal.SIGTERM, family)


def test_a_finished_cell_may_have_been_moved_and_one_that_goes_on_may_not(tmp_path: Path) -> None:
    study = load_study(written(tmp_path, MINI))
    for state in ("finished", "stopped"):
        here, there = tmp_path / state, tmp_path / f"{state}-moved"
        [cell] = cells(study, here)
        file = RunFile(cell.folder(here))
        file.start(cell.name, os.getpid())
        file.end(state)  # type: ignore[arg-type]
        (cell.folder(here) / "config.yaml").write_text(dump_yaml(cell.config))
        shutil.move(here, there)
        [cell] = cells(study, there)
        if state == "finished":
            assert is_finished(cell, there)
        else:
            with pytest.raises(ConfigError, match=r"run.folder: "):
                is_finished(cell, there)


def test_a_failed_cell_has_the_reason_of_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = load_study(written(tmp_path, MINI))
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
        command.study(written(tmp_path, MINI), tmp_path / "out", None)
    [cell] = seen
    run = run_target(load("tiny", ["allocation.rule=uniform"])).config
    assert cell.config.generator.replicas + cell.config.learner.workers == 8
    assert cell.config.generator.replicas == run.generator.replicas
