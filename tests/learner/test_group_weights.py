"""Weights of groups against their formulas, and the bias of pooling two phases, worked out exactly, with and
without weights."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from hora_rl.allocator import Session
from hora_rl.common.advantages import rloo, rloo_by_phase
from hora_rl.common.config.objective import GroupWeight
from hora_rl.common.errors import RunError
from hora_rl.common.types import Group
from hora_rl.learner.estimator import group_weight
from tests.support.groups import group, rollout

G0, G = 8, 32


def with_hits(hits: int, size: int) -> Group:
    rollouts = [rollout([1], success=j < hits) for j in range(size)]
    return group(0, rollouts, pre_rollouts=size)


@pytest.mark.parametrize(
    ("weight", "hits", "size", "wanted"),
    [
        ("none", 1, 8, 1.0),
        ("sqrt_size", 1, 8, 0.5),
        ("sqrt_size", 1, 128, 2.0),
        ("inverse_sqrt_size", 1, 128, 0.5),
        ("difficulty", 12, 100, 1.0),
        ("difficulty", 3, 100, 2.0),
        ("difficulty", 1, 200, 3.0),  # √24 is above hi
        ("difficulty", 99, 100, 0.7),
        ("difficulty", 0, 100, 3.0),
        ({"kind": "difficulty", "tau": 0.5, "gamma": 1.0, "lo": 0.1, "hi": 9.0}, 1, 10, 5.0),
    ],
)
def test_a_weight_is_its_formula(weight: object, hits: int, size: int, wanted: float) -> None:
    settings = GroupWeight.model_validate(weight)
    assert group_weight(with_hits(hits, size), settings, G) == pytest.approx(wanted)


def test_as_if_takes_the_size_that_the_other_rule_would_have_given() -> None:
    settings = GroupWeight(as_if="hit_utility")
    assert group_weight(replace(with_hits(1, G), size_as_if=98), settings, G) == pytest.approx(
        math.sqrt(98 / G)
    )
    with pytest.raises(RunError, match="group 0:0 does not say its size under rule hit_utility"):
        group_weight(with_hits(1, G), settings, G)


def sizes_of_phase_b(shards: int, prompts: int, each: int, least: int) -> np.ndarray:
    """Δ (shards, G0 + 1) of a prompt with c = 0 .. G0 successes among prompts whose rates are the paper's
    mix, at `each` Phase B rollouts a prompt and at least `least`."""
    rng = np.random.default_rng(0)
    others = rng.binomial(G0, rng.beta(0.323, 0.143, (shards, prompts - 1)))

    def size(counts: np.ndarray, c: int) -> int:
        session = Session(prompts, prompts * each, least_extra=least)
        session.tell(np.array([c, *counts]), G0)
        return int(session.ask()[0])

    return np.array([[size(counts, c) for c in range(G0 + 1)] for counts in others])


PAPER = sizes_of_phase_b(12, 15, G - G0, 0)


def mean_update(p: float, extra: int, c: int, unbiased: bool) -> float:
    """E over Phase B of (1/n) Σ_j A_j ∂log π(outcome j)/∂logit, whose true value is p(1 - p)."""
    total, chance = 0.0, binom.pmf(np.arange(extra + 1), extra, p)
    for hits in range(extra + 1):
        rewards = np.concatenate([np.arange(G0) < c, np.arange(extra) < hits]).astype(float)
        advantage = rloo_by_phase(rewards, G0, G0 / G) if unbiased else rloo(rewards)
        total += float(chance[hits]) * (advantage * (rewards - p)).mean()
    return total


def bias(p: float, unbiased: bool, sizes_by_shard: np.ndarray = PAPER) -> float:
    """Expected update over p(1 - p): over Phase A, the others of the shard and Phase B."""
    chance = binom.pmf(np.arange(G0 + 1), G0, p)
    total = 0.0
    for c in range(G0 + 1):
        sizes, counts = np.unique(sizes_by_shard[:, c], return_counts=True)
        values = [mean_update(p, int(extra), c, unbiased) for extra in sizes]
        total += chance[c] * float(np.average(values, weights=counts))
    return total / (p * (1 - p))


def test_with_few_rollouts_a_least_share_keeps_the_expectation() -> None:
    """Three prompts with two Phase B rollouts each: one without a success may get none."""
    few = (12, 3, 2)
    assert sizes_of_phase_b(*few, least=0).min() == 0
    with pytest.raises(ValueError, match="a group of 8 rollouts has no Phase B"):
        bias(0.9, unbiased=True, sizes_by_shard=sizes_of_phase_b(*few, least=0))
    for p in (0.03, 0.5, 0.9, 0.995):
        sizes = sizes_of_phase_b(*few, least=1)
        assert bias(p, unbiased=True, sizes_by_shard=sizes) == pytest.approx(1.0, abs=1e-10)


@pytest.mark.parametrize(("p", "pooled"), [(0.03, 1.05), (0.5, 1.00), (0.995, 0.93)])
def test_pooling_phases_biases_rloo_and_weights_by_phase_do_not(p: float, pooled: float) -> None:
    assert PAPER.min() >= 1, "every prompt gets a Phase B"
    assert bias(p, unbiased=False) == pytest.approx(pooled, abs=0.02)
    assert bias(p, unbiased=True) == pytest.approx(1.0, abs=1e-10)


def test_uniform_sampling_is_unbiased_either_way() -> None:
    for p in (0.03, 0.995):
        chance = binom.pmf(np.arange(G0 + 1), G0, p)
        for unbiased in (False, True):
            updates = [mean_update(p, G - G0, c, unbiased) for c in range(G0 + 1)]
            assert float(chance @ updates) == pytest.approx(p * (1 - p), rel=1e-10)
