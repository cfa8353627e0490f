"""Which rewards and successes of a group its advantages are made of."""

from dataclasses import replace

import numpy as np
import pytest

from hora_rl.common.advantages import centred, likelihood, max_rl, rloo
from hora_rl.common.config import Objective
from hora_rl.common.errors import ConfigError
from hora_rl.common.types import Group
from hora_rl.learner.batch import samples_of
from hora_rl.learner.estimator import Estimator
from hora_rl.learner.totals import Totals
from hora_rl.learner.user_advantage import try_advantage, user_advantage
from tests.support.groups import group, rollout

WEIGHTS = {"accuracy": 0.5, "format": 0.25}


def rewarded(accuracy: list[float], form: list[float]) -> Group:
    rollouts = [
        rollout(phase="A" if j < 2 else "B", rewards={"accuracy": a, "format": f}, success=a >= 1.0)
        for j, (a, f) in enumerate(zip(accuracy, form, strict=True))
    ]
    return group(0, rollouts, pre_rollouts=2)


def estimate(group: Group, totals: Totals | None = None, **objective: object) -> np.ndarray:
    return Estimator(Objective.model_validate(objective), WEIGHTS, "accuracy", 4, 10, totals).advantages(
        group
    )


MIXED = rewarded([1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 0.0, 1.0])


def test_rewards_are_the_weighted_sum() -> None:
    assert estimate(MIXED, advantage="rloo") == pytest.approx(rloo([0.75, 0.25, 0.0, 0.75]))


def test_an_advantage_of_successes_takes_other_rewards_as_a_centred_term() -> None:
    found = estimate(MIXED, advantage="likelihood")
    assert found == pytest.approx(likelihood([1, 0, 0, 1]) + 0.25 * np.array([0.25, 0.25, -0.75, 0.25]))


def test_all_wrong_groups_of_equal_form_teach_nothing_under_likelihood_and_all_under_weighted_reinforce() -> (
    None
):
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
    cut = replace(MIXED.rollouts[1], finish_reason="length")
    late = replace(MIXED, rollouts=(MIXED.rollouts[0], cut, *MIXED.rollouts[2:]))
    masked, kept = (
        samples_of(
            [late], Estimator(Objective(overlong=overlong, kl=0.1), WEIGHTS, "accuracy", 4, 10), 1, version=0
        )
        for overlong in ("mask", "keep")
    )
    assert [s.advantage for s in masked] == [s.advantage for i, s in enumerate(kept) if i != 1]
    assert {s.scale for s in masked} == {1 / (4 * 10)}


def test_token_aggregation_divides_by_the_trained_tokens_of_the_step() -> None:
    cut = replace(MIXED.rollouts[1], finish_reason="length")
    late = replace(MIXED, rollouts=(MIXED.rollouts[0], cut, *MIXED.rollouts[2:]))
    estimator = Estimator(Objective(aggregate="token", overlong="mask"), WEIGHTS, "accuracy", 4, 10)
    totals = estimator.sums([late, MIXED])
    assert totals.tokens == 3 * 7
    samples = samples_of([late], replace(estimator, totals=totals), 2, version=0)
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
