"""Each advantage against its published definition, worked out by hand or by enumerating subsets."""

from itertools import combinations

import numpy as np
import pytest

from learner.advantages import (
    centred,
    grpo,
    likelihood,
    max_rl,
    pass_at_k,
    pkpo,
    rloo,
    weighted_reinforce,
)


def test_grpo_divides_by_the_sample_deviation() -> None:
    rewards = np.array([1.0, 0.5, 0.0, 0.5])
    assert grpo(rewards) == pytest.approx((rewards - 0.5) / (rewards.std(ddof=1) + 1e-4))


def test_rloo_compares_with_the_mean_of_the_others() -> None:
    assert rloo([1.0, 0.0, 0.0]) == pytest.approx([1.0, -0.5, -0.5])


def test_dr_grpo_only_centres() -> None:
    assert centred([1.0, 0.0, 0.5]) == pytest.approx([0.5, -0.5, 0.0])


@pytest.mark.parametrize("advantage", [grpo, centred, rloo, max_rl])
@pytest.mark.parametrize("rewards", [[0.7], [0.5] * 200, [0.1, 0.1, 0.1]])
def test_no_comparison_is_exactly_no_signal(advantage, rewards: list[float]) -> None:  # type: ignore[no-untyped-def]
    assert not advantage(rewards).any()


def test_max_rl_divides_by_the_mean() -> None:
    assert max_rl([1, 0, 0, 0]) == pytest.approx([3, -1, -1, -1])
    assert max_rl([1, 1, 0, 0]) == pytest.approx([1, 1, -1, -1])


def test_likelihood_takes_hits_alone_and_a_group_of_one_hit_teaches() -> None:
    assert likelihood([1, 0, 0, 1]) == pytest.approx([2, 0, 0, 2])
    assert likelihood([1]) == pytest.approx([1])
    assert not likelihood([0, 0, 0]).any()


def test_the_wald_baseline_acts_on_every_rollout_of_all_wrong_groups_too() -> None:
    assert likelihood([0, 0, 0], 1 / 6) == pytest.approx([-0.5] * 3)
    assert likelihood([1, 0, 0], 1 / 6) == pytest.approx([2.5, -0.5, -0.5])


def test_weighted_reinforce_pays_little_for_hits_and_takes_misses_in_full() -> None:
    assert weighted_reinforce([1, 0], 0.1).tolist() == [0.1, -1.0]


def of_subsets(rewards: np.ndarray, k: int) -> np.ndarray:
    """s_i of PKPO's sloo_minus_one, from its definition."""
    n, s = len(rewards), np.zeros(len(rewards))
    chosen = list(combinations(range(n), k))
    for subset in chosen:
        for i in subset:
            rest = [rewards[j] for j in subset if j != i]
            s[i] += (rewards[list(subset)].max() - max(rest)) / len(chosen)
    return s


@pytest.mark.parametrize(("n", "k"), [(2, 2), (5, 2), (7, 3), (8, 8), (9, 5)])
def test_pkpo_is_the_mean_over_all_subsets(n: int, k: int) -> None:
    rng = np.random.default_rng(n)
    for rewards in (rng.normal(size=n), rng.integers(0, 2, n).astype(float), rng.integers(0, 3, n) / 2.0):
        assert pkpo(rewards, k) == pytest.approx(n * of_subsets(rewards, k), abs=1e-12)


@pytest.mark.parametrize(("n", "k"), [(2, 1), (5, 2), (7, 3), (8, 8), (9, 5)])
def test_pass_at_k_is_the_mean_over_all_subsets_that_hold_a_rollout(n: int, k: int) -> None:
    for hits in range(1, n + 1):
        successes = np.arange(n) < hits
        chosen = list(combinations(range(n), k))
        of_subset = np.array([successes[list(s)].any() for s in chosen], dtype=float)
        if of_subset.std() == 0:
            assert not pass_at_k(successes, k).any()
            continue
        relative = (of_subset - of_subset.mean()) / of_subset.std()
        wanted = [np.mean([a for a, s in zip(relative, chosen, strict=True) if i in s]) for i in range(n)]
        assert pass_at_k(successes, k) == pytest.approx(wanted, abs=1e-12)


def test_large_groups_neither_overflow_nor_lose_digits() -> None:
    successes = np.zeros(5000)
    successes[7] = 1.0
    advantage = pkpo(successes, 2000)
    assert advantage[7] == pytest.approx(
        2000
    )  # every subset that holds it gains from it: n·C(n-1, k-1)/C(n, k) = k
    assert np.abs(np.delete(advantage, 7)).max() == 0.0
    assert np.isfinite(pass_at_k(successes, 2000)).all()


@pytest.mark.parametrize("advantage", [pass_at_k, pkpo])
def test_a_group_smaller_than_k_is_refused(advantage) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"group of 3 rollouts.*k = 4"):
        advantage([1.0, 0.0, 0.0], 4)
