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
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_no_number_of_gpus_is_written_for_run_divides_them(
    count: int, task: Task, tmp_path: Path, cards: Callable[[int], None]
) -> None:
    cards(count)
    config = load(str(initialise(tmp_path / "big.yaml", task)[0]))
    assert config.run.resources == "auto"
    assert not {"replicas", "gpus"} & config.generator.model_fields_set
    assert not {"workers", "gpus", "zero_stage"} & config.learner.model_fields_set
    assert config.model.dtype == "bfloat16"
    assert not config.generator.enforce_eager
