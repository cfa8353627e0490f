import numpy as np
import pytest

from learner.advantages import Kind, advantages


def test_grpo_divides_by_the_sample_deviation() -> None:
    rewards = np.array([1.0, 0.5, 0.0, 0.5])
    assert advantages(rewards, "grpo") == pytest.approx((rewards - 0.5) / (rewards.std(ddof=1) + 1e-4))


def test_rloo_compares_with_the_mean_of_the_others() -> None:
    assert advantages([1.0, 0.0, 0.0], "rloo") == pytest.approx([1.0, -0.5, -0.5])


def test_dr_grpo_only_centres() -> None:
    assert advantages([1.0, 0.0, 0.5], "dr_grpo") == pytest.approx([0.5, -0.5, 0.0])


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "rloo"])
@pytest.mark.parametrize("rewards", [[0.7], [0.5] * 200, [0.1, 0.1, 0.1]])
def test_no_comparison_is_exactly_no_signal(kind: Kind, rewards: list[float]) -> None:
    assert not advantages(rewards, kind).any()
