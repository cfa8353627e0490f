"""`hora init` writes what `hora check` accepts, on machines with and without GPUs, and never over a file."""

from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from common.errors import ConfigError
from common.load import load
from deploy import initial
from deploy.initial import Task, initialise
from deploy.preflight.checks import CONFIGURATION, require
from deploy.preflight.findings import Target

TASKS: tuple[Task, ...] = ("math", "mine", "code")


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda count: monkeypatch.setattr(initial, "gpus", lambda: ["H200"] * count)


@pytest.mark.parametrize("task", TASKS)
def test_what_is_written_is_accepted(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cards: Callable[[int], None]
) -> None:
    cards(0)
    monkeypatch.chdir(tmp_path)
    written = initialise(Path(f"{task}-first.yaml"), task)
    assert len(written) == {"math": 1, "mine": 3, "code": 2}[task]
    config = load(str(written[0]))
    found = require(Target(config), Console(quiet=True), CONFIGURATION)
    assert {f.level for f in found} <= {"ok", "warn"}
    assert config.run.name == f"{task}_first"
    with pytest.raises(ConfigError, match="exists already"):
        initialise(Path(f"{task}-first.yaml"), task)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("count", "replicas", "workers"), [(2, 1, 1), (3, 1, 2), (8, 4, 4)])
def test_every_gpu_has_its_part(
    count: int, replicas: int, workers: int, task: Task, tmp_path: Path, cards: Callable[[int], None]
) -> None:
    cards(count)
    config = load(str(initialise(tmp_path / "big.yaml", task)[0]))
    assert (config.generator.replicas, config.learner.workers) == (replicas, workers)
    assert config.model.dtype == "bfloat16"


def test_one_gpu_is_one_line(tmp_path: Path, cards: Callable[[int], None]) -> None:
    cards(1)
    with pytest.raises(ConfigError, match="one GPU"):
        initialise(tmp_path / "one.yaml", "math")
    assert not list(tmp_path.iterdir())
