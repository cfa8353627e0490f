"""Folders of checkpoints: whole or absent. What DeepSpeed writes into them is a file here; `test_restart` has the real one."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError, RunError
from common.load import load
from learner.checkpoint import Checkpoints


class Weights:
    """Stands in for the engine: a state that is a text."""

    state = ""
    found_by_rank_0: int | None = None

    def save(self, folder: Path, tag: str) -> None:
        (folder / tag).write_text(self.state)

    def agree(self, step: int) -> int:
        return step if self.found_by_rank_0 is None else self.found_by_rank_0

    def load(self, folder: Path, tag: str) -> None:
        self.state = (folder / tag).read_text()


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    config = load("tiny", ["learner.keep_checkpoints=2"])
    return Checkpoints(config, tmp_path, rank=0, world=1)


def save(checkpoints: Checkpoints, step: int, state: str) -> None:
    weights: Any = Weights()
    weights.state = state
    checkpoints.save(weights, step)


def restored(checkpoints: Checkpoints) -> tuple[int, str]:
    weights: Any = Weights()
    return checkpoints.restore(weights), weights.state


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_the_newest_two_are_kept_and_the_newest_is_restored(checkpoints: Checkpoints, tmp_path: Path) -> None:
    assert restored(checkpoints) == (0, "")
    for step in (2, 4, 6):
        save(checkpoints, step, f"after {step}")
    (tmp_path / "checkpoints" / "step-00000006.copy").mkdir()  # somebody's own
    assert names(tmp_path) == ["step-00000004", "step-00000006", "step-00000006.copy"]
    assert restored(checkpoints) == (6, "after 6")


def test_a_folder_that_is_half_removed_is_no_checkpoint(
    checkpoints: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    save(checkpoints, 2, "after 2")
    save(checkpoints, 4, "after 4")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", die)
        with pytest.raises(KeyboardInterrupt):
            save(checkpoints, 6, "after 6")
    assert names(tmp_path) == ["partial-removed-step-00000002", "step-00000004", "step-00000006"]
    assert restored(checkpoints) == (6, "after 6")
    save(checkpoints, 8, "after 8")
    assert names(tmp_path) == ["step-00000006", "step-00000008"]


def test_a_checkpoint_of_the_same_step_stays(checkpoints: Checkpoints, tmp_path: Path) -> None:
    save(checkpoints, 2, "acknowledged")
    save(checkpoints, 2, "again")
    assert names(tmp_path) == ["step-00000002"]
    assert restored(checkpoints) == (2, "acknowledged")


def test_every_rank_restores_what_rank_0_found(
    checkpoints: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (2, 4):
        save(checkpoints, step, f"after {step}")
    weights: Any = Weights()
    weights.found_by_rank_0 = 2
    assert checkpoints.restore(weights) == 2
    assert weights.state == "after 2"
    weights.found_by_rank_0 = 6
    monkeypatch.setattr("learner.checkpoint.SEEN_S", 0.1)
    with pytest.raises(RunError, match=r"step-00000006.*must lie on a disk"):
        checkpoints.restore(weights)


def test_parts_of_other_ranks_are_not_restored(tmp_path: Path) -> None:
    config = load("tiny", ["learner.zero_stage=1"])
    save(Checkpoints(config, tmp_path, rank=0, world=1), 2, "after 2")
    with pytest.raises(ConfigError, match="1 ranks, and there are 2"):
        restored(Checkpoints(config, tmp_path, rank=0, world=2))
