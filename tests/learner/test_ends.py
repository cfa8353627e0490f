"""Drift above weights.drift_limit on the first steps stops the run before it publishes spoilt weights; a disk
that takes no more ends it with the disk's name, once."""

from pathlib import Path

import pytest

from hora_rl.common.errors import RunError
from hora_rl.common.files import check_room
from hora_rl.deploy.machine.redis_server import RedisServer
from hora_rl.learner.records.recorder import ENOUGH, FIRST, Drift
from tests.support.groups import fill
from tests.support.real_learner import ended, recorded, said, small_run, start
from tests.support.small_disk import fill_up, small_disk


def sums(drift: float, tokens: float = float(ENOUGH)) -> dict[str, float]:
    return {"drift": drift * tokens, "drift_tokens": tokens, "loss": 0.1}


def test_drift_above_the_limit_stops_the_first_measurements_alone() -> None:
    with pytest.raises(RunError, match=r"step 3: .* 0\.51 .* 200 tokens.*weights\.drift_limit is 0\.5"):
        Drift(0.5).add(3, sums(0.51))
    assert Drift(None).add(0, sums(9.0)) == sums(9.0)
    drift = Drift(0.5)
    for step in range(20):
        drift.add(step, sums(0.0, tokens=0.0))  # nothing of the step's own version: not measured
    for step in range(FIRST):
        drift.add(step, sums(0.5))
    assert drift.add(FIRST, sums(9.0)) == sums(9.0)


def test_twenty_tokens_are_no_measurement_and_count_by_their_number_in_the_next() -> None:
    drift = Drift(0.5)
    assert drift.add(0, sums(5.0, tokens=20.0)) == {"drift": 0.0, "drift_tokens": 0.0, "loss": 0.1}
    measured = drift.add(1, sums(0.0, tokens=380.0))
    assert measured["drift"] / measured["drift_tokens"] == pytest.approx(0.25)
    assert drift.add(2, sums(0.1))["drift_tokens"] == ENOUGH


@pytest.mark.system
@pytest.mark.timeout(360)
def test_a_learner_fed_by_another_policy_stops_in_step_0(tmp_path: Path, redis_server: RedisServer) -> None:
    config = small_run(tmp_path, 2, "learner.steps=1")
    # Recorded log-probs are random numbers: nats away from those of the tiny model.
    fill(config, redis_server, recorded(config, [[60, 70, 60, 70]] * 2, per_batch=2))
    assert ended(start(config, redis_server, tmp_path, drift_limit=0.5)) != 0
    assert "hora learner, rank 0: step 0: on the same weights" in said(tmp_path)
    assert "weights.drift_limit is 0.5" in said(tmp_path)
    published = [p.name for p in (tmp_path / "r" / "weights").glob("*.safetensors")]
    assert len(published) <= 1, f"only the initial policy may be there: {published}"
    assert not (tmp_path / "r" / "model").exists()


def test_a_disk_is_full_or_it_is_not(tmp_path: Path) -> None:
    check_room(tmp_path)
    with small_disk(tmp_path / "disk", 4) as disk:
        check_room(disk)
        fill_up(disk)
        with pytest.raises(RunError, match=r"the disk of .*/disk is full: free some of it, then resume the"):
            check_room(disk)


@pytest.mark.slow
@pytest.mark.timeout(360)
def test_a_learner_on_a_full_disk_says_so_once_and_ends(tmp_path: Path, redis_server: RedisServer) -> None:
    with small_disk(tmp_path / "disk", 100) as disk:
        config = small_run(disk, 2, "learner.steps=4", "learner.checkpoint_every=1")
        fill(config, redis_server, recorded(config, [[9, 12]] * 8, per_batch=2))
        fill_up(disk, leaving=8)
        assert ended(start(config, redis_server, tmp_path)) == 1
        assert said(tmp_path).count(f"hora learner, rank 0: the disk of {disk / 'r'} is full") == 1
        assert said(tmp_path).count("is full") == 1
