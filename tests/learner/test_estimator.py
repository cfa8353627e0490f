"""What advantages and weights of groups are made of, and the bias of pooling two phases, exactly."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from hora_rl.allocator import Session
from hora_rl.common.advantages import centred, likelihood, max_rl, rloo, rloo_by_phase
from hora_rl.common.config import ObjectiveConfig
from hora_rl.common.config.objective import GroupWeightConfig
from hora_rl.common.errors import ConfigError, RunError
from hora_rl.common.types import Group
from hora_rl.learner.rows.batch import samples_of
from hora_rl.learner.rows.estimator import Estimator, group_weight
from hora_rl.learner.rows.user_advantage import try_advantage, user_advantage
from hora_rl.learner.totals import Totals
from tests.support.groups import group, rollout

WEIGHTS = {"accuracy": 0.5, "format": 0.25}
G0, G = 8, 32


def rewarded(accuracy: list[float], form: list[float]) -> Group:
    rollouts = [
        rollout(phase="A" if j < 2 else "B", rewards={"accuracy": a, "format": f}, success=a >= 1.0)
        for j, (a, f) in enumerate(zip(accuracy, form, strict=True))
    ]
    return group(0, rollouts, pre_rollouts=2)


def estimate(group: Group, totals: Totals | None = None, **objective: object) -> np.ndarray:
    chosen = ObjectiveConfig.model_validate(objective)
    return Estimator(chosen, WEIGHTS, "accuracy", 4, 10, totals).advantages(group)


MIXED = rewarded([1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 0.0, 1.0])
FIRST, SECOND, *REST = MIXED.rollouts
CUT = replace(MIXED, rollouts=(FIRST, replace(SECOND, finish_reason="length"), *REST))


def test_rewards_are_the_weighted_sum() -> None:
    assert estimate(MIXED, advantage="rloo") == pytest.approx(rloo([0.75, 0.25, 0.0, 0.75]))


def test_an_advantage_of_successes_takes_other_rewards_as_a_centred_term() -> None:
    found = estimate(MIXED, advantage="likelihood")
    assert found == pytest.approx(likelihood([1, 0, 0, 1]) + 0.25 * np.array([0.25, 0.25, -0.75, 0.25]))


def test_all_wrong_groups_of_equal_form_teach_only_under_weighted_reinforce_and_a_baseline() -> None:
    wrong = rewarded([0.0] * 3, [1.0] * 3)
    assert not estimate(wrong, advantage="likelihood").any()
    assert estimate(wrong, advantage="weighted_reinforce") == pytest.approx([-1.0] * 3)
    assert estimate(wrong, advantage="likelihood", baseline="wald") == pytest.approx([-3 / 4] * 3)


def test_the_soft_penalty_grows_over_the_last_tokens_before_the_limit() -> None:
    lengths, cache = [3, 6, 8, 10], 4
    rollouts = [replace(r, tokens=np.ones(n, np.int32)) for r, n in zip(MIXED.rollouts, lengths, strict=True)]
    late = replace(MIXED, rollouts=tuple(rollouts))
    objective = {"overlong": "soft", "overlong_cache": cache}
    penalty = np.array([0.0, 0.0, 0.5, 1.0])
    wanted = centred(np.array([0.75, 0.25, 0.0, 0.75]) - penalty)
    assert estimate(late, advantage="dr_grpo", **objective) == pytest.approx(wanted)
    of_others = centred(0.25 * np.array([1.0, 1.0, 0.0, 1.0]) - penalty)
    found = estimate(late, advantage="max_rl", **objective)
    assert found == pytest.approx(max_rl([1, 0, 0, 1]) + of_others)


def test_a_masked_completion_counts_in_its_group_and_is_not_trained() -> None:
    ways = [ObjectiveConfig(overlong=overlong, kl=0.1) for overlong in ("mask", "keep")]
    estimators = [Estimator(way, WEIGHTS, "accuracy", 4, 10) for way in ways]
    masked, kept = (samples_of([CUT], estimator, 1, version=0) for estimator in estimators)
    assert [s.advantage for s in masked] == [s.advantage for i, s in enumerate(kept) if i != 1]
    assert {s.scale for s in masked} == {1 / (4 * 10)}


def test_token_aggregation_divides_by_the_trained_tokens_of_the_step() -> None:
    estimator = Estimator(ObjectiveConfig(aggregate="token", overlong="mask"), WEIGHTS, "accuracy", 4, 10)
    totals = estimator.sums([CUT, MIXED])
    assert totals.tokens == 3 * 7
    samples = samples_of([CUT], replace(estimator, totals=totals), 2, version=0)
    assert {s.scale for s in samples} == {1 / 21}


def sum_of_hits(rewards, successes, phases):  # type: ignore[no-untyped-def]
    return successes * (phases == "B")


def too_short(rewards, successes, phases):  # type: ignore[no-untyped-def]
    return rewards[1:]


def nan_without_a_hit(rewards, successes, phases):  # type: ignore[no-untyped-def]
    return successes / np.sqrt(successes.sum()) if successes.any() else rewards * np.nan


def words(rewards, successes, phases):  # type: ignore[no-untyped-def]
    return "none"


def test_a_users_function_sees_rewards_successes_and_phases() -> None:
    assert estimate(MIXED, advantage=f"{__name__}:sum_of_hits") == pytest.approx([0.0, 0.0, 0.0, 1.0])


@pytest.mark.parametrize(
    ("function", "line"),
    [
        ("too_short", r"returned shape \(\d+,\) for a group of \d+ rollouts"),
        ("nan_without_a_hit", r"returned nan for rollout 0 of a group of 2 with rewards \[0.0, 0.0\]"),
        ("words", "returned a str, not numbers"),
        ("nothing", "cannot load.*nothing"),
        ("WEIGHTS", "is a dict, not a function"),
    ],
)
def test_a_users_function_that_cannot_serve_is_refused_before_a_run(function: str, line: str) -> None:
    with pytest.raises(ConfigError, match=line) as caught:
        try_advantage(f"{__name__}:{function}", 2, 8)
    assert "\n" not in str(caught.value)


def test_a_users_function_is_checked_on_every_group() -> None:
    with pytest.raises(ConfigError, match="must be finite"):
        user_advantage(f"{__name__}:nan_without_a_hit", np.zeros(3), np.zeros(3), np.array(["A"] * 3))


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
    ],
)
def test_a_weight_is_its_formula(weight: object, hits: int, size: int, wanted: float) -> None:
    settings = GroupWeightConfig.model_validate(weight)
    assert group_weight(with_hits(hits, size), settings, G) == pytest.approx(wanted)


def test_as_if_takes_the_size_that_the_other_rule_would_have_given() -> None:
    settings = GroupWeightConfig(as_if="hit_utility")
    as_98 = replace(with_hits(1, G), size_as_if=98)
    assert group_weight(as_98, settings, G) == pytest.approx(math.sqrt(98 / G))
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
