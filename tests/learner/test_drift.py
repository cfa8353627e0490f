"""Drift above weights.drift_limit on the first steps stops the run before the weights that it spoilt are
published."""

import os
import signal
from pathlib import Path

import pytest

from common.config import Config
from common.errors import RunError
from common.load import load
from deploy.launch.redis_server import RedisServer
from learner.drift import FIRST, DriftLimit
from tests.support.filling import fill
from tests.support.real_learner import finish, recorded, said, start


def sums(drift: float, tokens: float = 100.0) -> dict[str, float]:
    return {"drift": drift * tokens, "drift_tokens": tokens}


def test_drift_above_the_limit_stops_with_both_values_and_the_remedy() -> None:
    with pytest.raises(
        RunError, match=r"step 3: .* differ by 0\.51 .*weights\.drift_limit is 0\.5"
    ) as stopped:
        DriftLimit(0.5).check(3, sums(0.51))
    assert "model.dtype" in str(stopped.value)


def test_only_the_first_measured_steps_are_held_to_it() -> None:
    limit = DriftLimit(0.5)
    for step in range(20):
        limit.check(step, sums(0.0, tokens=0.0))  # nothing of the step's own version: not measured
    for step in range(FIRST):
        limit.check(step, sums(0.5))
    limit.check(FIRST, sums(9.0))


def test_without_a_limit_nothing_stops_the_run() -> None:
    DriftLimit(None).check(0, sums(9.0))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    small = ["rollout.prompts_per_batch=2", "rollout.shards=1", "learner.steps=1"]
    return load("tiny", ["run.name=r", f"run.folder={tmp_path}", *small])


@pytest.mark.system
@pytest.mark.timeout(300)
def test_a_learner_fed_by_another_policy_stops_in_its_first_step(
    tmp_path: Path, config: Config, redis_server: RedisServer
) -> None:
    # Recorded log-probs are random numbers: nats away from those of the tiny model.
    fill(config, redis_server, recorded(config, [[20, 30]] * 2, per_batch=2))
    process = start(config, redis_server, tmp_path, drift_limit=0.5)
    try:
        assert process.wait(200) != 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert "hora learner, rank 0: step 0: on the same weights" in said(tmp_path)
    assert "weights.drift_limit is 0.5" in said(tmp_path)
    published = [p.name for p in (tmp_path / "r" / "weights").glob("*.safetensors")]
    assert len(published) <= 1, f"only the initial policy may be there: {published}"
    assert not (tmp_path / "r" / "model").exists()
    finish(start(config, redis_server, tmp_path), tmp_path)  # without a limit the same groups are trained on
