"""Folders of checkpoints: whole or absent. DeepSpeed's part is a file here, in `test_restart` real."""

import hashlib
import hmac
import json
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from hora_rl.common.errors import ConfigError, RunError
from hora_rl.common.load import load
from hora_rl.learner.checkpoints.checkpoint import TAG, Checkpoints
from hora_rl.learner.checkpoints.manifest import read_manifest, read_secret


class Weights:
    """Stands in for the engine: a state that is a text."""

    def __init__(self, state: str = "", trouble: OSError | None = None, rank_0: int | None = None) -> None:
        self.state, self.trouble, self.found_by_rank_0 = state, trouble, rank_0
        self.loads, self.goes_on = 0, threading.Event()
        self.goes_on.set()

    def save(self, folder: Path, tag: str) -> Callable[[], None]:
        state = self.state

        def write() -> None:
            assert self.goes_on.wait(60)
            if self.trouble is not None:
                raise self.trouble
            (folder / tag).write_text(state)

        return write

    def agree(self, step: int) -> int:
        return step if self.found_by_rank_0 is None else self.found_by_rank_0

    def load(self, folder: Path, tag: str) -> None:
        self.loads += 1
        self.state = (folder / tag).read_text()


def begun(folder: Path, *settings: str, rank: int = 0) -> Checkpoints:
    return Checkpoints(load("tiny", ["run.name=c", *settings]), folder, rank, world=1)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return begun(tmp_path, "learner.keep_checkpoints=2")


def save(checkpoints: Checkpoints, step: int, state: str) -> int:
    weights: Any = Weights(state)
    checkpoints.begin(weights, step)
    return checkpoints.finished(wait=True)


def restored(checkpoints: Checkpoints) -> tuple[int, str]:
    weights: Any = Weights()
    return checkpoints.restore(weights), weights.state


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_the_newest_two_are_kept_and_the_newest_is_restored(checkpoints: Checkpoints, tmp_path: Path) -> None:
    assert restored(checkpoints) == (0, "")
    needed_from = [save(checkpoints, step, f"after {step}") for step in (2, 4, 6)]
    assert needed_from == [0, 2, 4], "groups are needed from the oldest kept checkpoint"
    (tmp_path / "checkpoints" / "step-00000006.copy").mkdir()  # somebody's own
    assert names(tmp_path) == ["step-00000004", "step-00000006", "step-00000006.copy"]
    assert restored(checkpoints) == (6, "after 6")
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000006.copy")
    assert save(begun(tmp_path, "learner.keep_checkpoints=1"), 8, "s") == 8
    assert names(tmp_path) == ["step-00000008"]


def test_the_step_waits_for_the_copy_and_nothing_is_acknowledged_before_the_disk_has_it(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    save(checkpoints, 2, "after 2")
    weights: Any = Weights("after 4")
    weights.goes_on.clear()
    checkpoints.begin(weights, 4)
    weights.state = "after 5"  # training goes on
    assert checkpoints.finished() is None
    assert names(tmp_path) == ["partial-00000004", "step-00000002"]
    weights.goes_on.set()
    assert checkpoints.finished(wait=True) == 2
    assert names(tmp_path) == ["step-00000002", "step-00000004"]
    assert checkpoints.finished() is None, "it is acknowledged once"
    assert restored(checkpoints) == (4, "after 4")


def test_a_disk_that_fails_while_the_next_step_trains_ends_the_learner_and_not_the_checkpoint_before(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    save(checkpoints, 2, "after 2")
    weights: Any = Weights(trouble=OSError(28, "No space left on device"))
    checkpoints.begin(weights, 4)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.finished(wait=True)
    assert restored(checkpoints) == (2, "after 2")
    assert save(checkpoints, 6, "after 6") == 2
    assert names(tmp_path) == ["step-00000002", "step-00000006"], "what was torn is removed"


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
    other_rank = begun(tmp_path, rank=1)
    weights: Any = Weights(rank_0=2)
    assert other_rank.restore(weights) == 2
    assert weights.state == "after 2"
    weights.found_by_rank_0 = 6
    monkeypatch.setattr("hora_rl.learner.checkpoints.checkpoint.SEEN_S", 0.1)
    with pytest.raises(RunError, match=r"step-00000006.*must lie on a disk"):
        other_rank.restore(weights)


def noise(folder: Path) -> None:
    file = folder / TAG
    data = bytearray(file.read_bytes())
    data[1] ^= 1
    file.write_bytes(data)


def cut_manifest(folder: Path) -> None:
    file = folder / "manifest.json"
    file.write_text(file.read_text()[:-20])


def forge(folder: Path) -> None:
    """As one who knows everything but the secret."""
    state = "a stranger's"
    (folder / TAG).write_text(state)
    known = json.loads((folder / "manifest.json").read_text())
    known["files"][TAG] = [len(state), blake3(state.encode()).hexdigest()]
    del known["hmac"]
    signature = hmac.new(b"guess", json.dumps(known, sort_keys=True).encode(), hashlib.sha256).hexdigest()
    (folder / "manifest.json").write_text(json.dumps({**known, "hmac": signature}))


def rename_older(folder: Path) -> None:
    """A whole checkpoint of another step under this one's name."""
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("step-00000002"), folder)


FAULTS: dict[str, Callable[[Path], object]] = {
    "state is not what was written": noise,
    "state has 5 bytes, 7 were written": lambda folder: (folder / TAG).write_text("after"),
    "state is missing": lambda folder: (folder / TAG).unlink(),
    "manifest.json is missing": lambda folder: (folder / "manifest.json").unlink(),
    "manifest.json cannot be read": cut_manifest,
    "optim_states.pt is not in manifest.json": lambda f: (f / "rank_7_optim_states.pt").write_bytes(b"x"),
    "manifest.json is not signed with this run's secret": forge,
    "manifest.json is of run 'c', step 2": rename_older,
}


@pytest.mark.parametrize("reason", FAULTS)
def test_what_is_not_as_it_was_written_is_set_aside_unread_and_the_one_before_is_taken(
    checkpoints: Checkpoints, tmp_path: Path, reason: str
) -> None:
    for step in (2, 4):
        save(checkpoints, step, f"after {step}")
    FAULTS[reason](tmp_path / "checkpoints" / "step-00000004")
    again = begun(tmp_path)
    weights: Any = Weights()
    assert (again.restore(weights), weights.state, weights.loads) == (2, "after 2", 1)
    assert names(tmp_path) == ["refused-step-00000004", "step-00000002"]
    assert again.refused == [f"step-00000004: {again.refused[0].partition(': ')[2]}"]
    assert reason in again.refused[0]
    assert save(again, 4, "after 4 again") == 2
    assert restored(again) == (4, "after 4 again")


def test_when_all_are_damaged_none_is_loaded(checkpoints: Checkpoints, tmp_path: Path) -> None:
    for step in (2, 4):
        save(checkpoints, step, f"after {step}")
        noise(tmp_path / "checkpoints" / f"step-{step:08d}")
    weights: Any = Weights()
    assert (checkpoints.restore(weights), weights.loads) == (0, 0)
    assert len(checkpoints.refused) == 2


def test_no_checkpoint_that_was_damaged_since_is_relied_on(checkpoints: Checkpoints, tmp_path: Path) -> None:
    """The one before it stays, and with it the groups of the steps since."""
    for step in (2, 4):
        save(checkpoints, step, f"after {step}")
    noise(tmp_path / "checkpoints" / "step-00000004")
    assert save(checkpoints, 6, "after 6") == 2
    assert names(tmp_path) == ["refused-step-00000004", "step-00000002", "step-00000006"]


def test_without_secret_nothing_is_loaded_and_none_is_made(checkpoints: Checkpoints, tmp_path: Path) -> None:
    save(checkpoints, 2, "after 2")
    secret = tmp_path / "secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    secret.unlink()
    with pytest.raises(RunError, match=r"secret is missing.*bring it back"):
        begun(tmp_path)
    assert names(tmp_path) == ["step-00000002"]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_a_secret_that_another_user_put_there_is_refused(checkpoints: Checkpoints, tmp_path: Path) -> None:
    save(checkpoints, 2, "after 2")
    os.chown(tmp_path / "secret", 12345, -1)
    with pytest.raises(RunError, match="belongs to another user"):
        begun(tmp_path)


def test_parts_of_other_ranks_are_not_restored(tmp_path: Path) -> None:
    checkpoints = begun(tmp_path, "learner.zero_stage=1")
    save(checkpoints, 2, "after 2")
    folder, secret = tmp_path / "checkpoints" / "step-00000002", read_secret(tmp_path)
    replace(read_manifest(folder, secret, "c", 2), world=2).write(folder, secret)
    with pytest.raises(ConfigError, match="2 ranks, and there are 1"):
        restored(checkpoints)
