"""What advantages and weights of groups are made of."""

import math
from dataclasses import replace

import numpy as np
import pytest

from hora_rl.common.advantages import formula
from hora_rl.common.algorithms.base import Algorithm, centred
from hora_rl.common.config import ObjectiveConfig
from hora_rl.common.config.objective import GroupWeightConfig
from hora_rl.common.errors import ConfigError, RunError
from hora_rl.common.types import Group
from hora_rl.learner.rows.batch import samples_of
from hora_rl.learner.rows.estimator import Estimator, group_weight
from tests.support.groups import group, rollout

WEIGHTS = {"accuracy": 0.5, "format": 0.25}
G = 32


def rewarded(accuracy: list[float], form: list[float]) -> Group:
    rollouts = [
        rollout(phase="A" if j < 2 else "B", rewards={"accuracy": a, "format": f}, success=a >= 1.0)
        for j, (a, f) in enumerate(zip(accuracy, form, strict=True))
    ]
    return group(0, rollouts, pre_rollouts=2)


def estimator(size: int = 4, **objective: object) -> Estimator:
    return Estimator(ObjectiveConfig.model_validate(objective), WEIGHTS, "accuracy", size, 10)


def estimate(group: Group, **objective: object) -> np.ndarray:
    return estimator(**objective).advantages(group)


MIXED = rewarded([1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 0.0, 1.0])
FIRST, SECOND, *REST = MIXED.rollouts
CUT = replace(MIXED, rollouts=(FIRST, replace(SECOND, finish_reason="length"), *REST))


def test_rewards_are_the_weighted_sum() -> None:
    assert estimate(MIXED, advantage="rloo") == pytest.approx(
        formula("rloo")(np.array([0.75, 0.25, 0.0, 0.75]))
    )


def test_an_advantage_of_successes_takes_other_rewards_as_a_centred_term() -> None:
    advantage = estimate(MIXED, advantage="likelihood")
    assert advantage == pytest.approx([2, 0, 0, 2] + 0.25 * np.array([0.25, 0.25, -0.75, 0.25]))


def test_all_wrong_groups_of_equal_form_teach_only_under_weighted_reinforce_and_a_baseline() -> None:
    wrong = rewarded([0.0] * 3, [1.0] * 3)
    assert not estimate(wrong, advantage="likelihood").any()
    assert estimate(wrong, advantage="weighted_reinforce") == pytest.approx([-1.0] * 3)
    assert estimate(wrong, advantage="likelihood", baseline="wald") == pytest.approx([-3 / 4] * 3)


def test_the_soft_penalty_grows_over_the_last_fifth_before_the_limit() -> None:
    lengths = [3, 8, 9, 10]
    rollouts = [replace(r, tokens=np.ones(n, np.int32)) for r, n in zip(MIXED.rollouts, lengths, strict=True)]
    late = replace(MIXED, rollouts=tuple(rollouts))
    penalty = np.array([0.0, 0.0, 0.5, 1.0])
    wanted = centred(np.array([0.75, 0.25, 0.0, 0.75]) - penalty)
    assert estimate(late, advantage="dr_grpo", overlong="soft") == pytest.approx(wanted)
    of_others = centred(0.25 * np.array([1.0, 1.0, 0.0, 1.0]) - penalty)
    advantage = estimate(late, advantage="max_rl", overlong="soft")
    assert advantage == pytest.approx(np.array([1, -1, -1, 1]) + of_others)


def test_a_masked_completion_counts_in_its_group_and_is_not_trained() -> None:
    masked, kept = (
        samples_of([CUT], estimator(overlong=way, kl=0.1), 1, version=0) for way in ("mask", "keep")
    )
    assert [s.advantage for s in masked] == [s.advantage for i, s in enumerate(kept) if i != 1]
    assert {s.scale for s in masked} == {1 / (4 * 10)}


def test_token_normalisation_divides_by_the_trained_tokens_of_the_step() -> None:
    by_token = estimator(normalisation="token", overlong="mask")
    tokens = by_token.trained_tokens([CUT, MIXED])
    assert tokens == 3 * 7
    samples = samples_of([CUT], replace(by_token, tokens=tokens), 2, version=0)
    assert {s.scale for s in samples} == {1 / 21}


def sum_of_hits(rewards, successes, phases):  # type: ignore[no-untyped-def]
    return successes * (phases == "B")


def too_short(rewards, successes, phases):  # type: ignore[no-untyped-def]
    return rewards[1:]


def nan_without_a_hit(rewards, successes, phases):  # type: ignore[no-untyped-def]
    return successes / np.sqrt(successes.sum()) if successes.any() else rewards * np.nan


def words(rewards, successes, phases):  # type: ignore[no-untyped-def]
    return "none"


OWN = Algorithm(advantage=lambda successes: 2.0 * successes, counts=True)


@pytest.mark.parametrize(
    ("name", "wanted"), [("sum_of_hits", [0.0, 0.0, 0.0, 1.0]), ("OWN", [2.0625, 0.0625, -0.1875, 2.0625])]
)
def test_a_users_advantage_is_a_function_or_an_algorithm(name: str, wanted: list[float]) -> None:
    assert estimate(MIXED, advantage=f"{__name__}:{name}") == pytest.approx(wanted)


@pytest.mark.parametrize("function", ["too_short", "nan_without_a_hit", "words", "nothing", "WEIGHTS"])
def test_a_users_function_that_cannot_serve_is_refused_before_a_run(function: str) -> None:
    with pytest.raises(ConfigError) as caught:
        estimator(8, advantage=f"{__name__}:{function}").try_advantage(2)
    assert str(caught.value).startswith("learner.objective.advantage")
    assert "\n" not in str(caught.value)


def test_a_users_algorithm_that_counts_needs_a_success() -> None:
    objective = ObjectiveConfig(advantage=f"{__name__}:OWN")
    Estimator(objective, WEIGHTS, "accuracy", 8, 10).try_advantage(2)
    with pytest.raises(ConfigError, match=r"reward\.success"):
        Estimator(objective, WEIGHTS, None, 8, 10).try_advantage(2)


def test_a_users_function_is_checked_on_every_group() -> None:
    with pytest.raises(ConfigError):
        estimate(rewarded([0.0] * 3, [1.0] * 3), advantage=f"{__name__}:nan_without_a_hit")


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
    with pytest.raises(RunError, match="group 0:0"):
        group_weight(with_hits(1, G), settings, G)
