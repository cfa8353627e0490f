"""The learning rate over a run: warm-up and decay are in optimizer steps, however many updates a step has."""

import pytest

from hora_rl.common.load import load
from hora_rl.learner.optimizer import schedule


@pytest.mark.parametrize("updates", [1, 4])
@pytest.mark.parametrize("kind", ["linear", "cosine", "constant"])
def test_warm_up_and_decay_count_steps(updates: int, kind: str) -> None:
    optimizer = {"learner.optimizer.warmup_steps": 8, "learner.optimizer.schedule": kind}
    settings = {**optimizer, "learner.steps": 40, "learner.objective.updates_per_batch": updates}
    factor = schedule(load("tiny", [f"{key}={value}" for key, value in settings.items()]).learner)
    rising = [factor(u) for u in range(8 * updates)]
    assert rising == sorted(rising)
    assert factor(4 * updates - 1) == pytest.approx(0.5)
    assert factor(8 * updates - 1) == factor(8 * updates) == 1.0
    half, end = factor(24 * updates), factor(40 * updates)
    assert (half, end) == pytest.approx((1.0, 1.0) if kind == "constant" else (0.5, 0.0))
