"""What a step reports, from groups and sums."""

import math
from dataclasses import replace

import numpy as np
import pytest

from hora_rl.common.config import Config
from hora_rl.common.types import Group, Phase, VersionSpan
from hora_rl.learner.batch import measurable
from hora_rl.learner.metrics import step_metrics
from tests.support.groups import group, rollout

CONFIG = Config.model_validate({"model": {"path": "m"}, "data": {"path": "arithmetic"}})


def of_accuracies(index: int, accuracies: list[float], version: int = 3, length: int = 4) -> Group:
    spans = [VersionSpan(version, 0, 1), VersionSpan(version + 1, 1, length)]
    return group(index, [rollout([1] * length, spans=spans, success=a == 1.0) for a in accuracies])


def metrics(groups: list[Group], sums: dict[str, float], config: Config = CONFIG) -> dict[str, float]:
    return step_metrics(5, groups, sums, config, ranks=2, grad_norm=1.0, learning_rate=0.1)


def test_successes_are_a_mean_over_prompts_and_not_shown_where_none_is_defined() -> None:
    groups = [of_accuracies(0, [1.0]), of_accuracies(1, [1.0, 0.0, 0.0, 0.0])]
    assert metrics(groups, {})["success"] == 0.625
    none = CONFIG.model_copy(update={"reward": CONFIG.reward.model_copy(update={"success": None})})
    assert not {"success", "groups/hit"} & metrics(groups, {}, none).keys()


def test_groups_without_signal_and_of_size_one_are_counted() -> None:
    earned = [[1.0], [0.0, 0.0], [1.0, 0.0], [1.0] * 9]
    found = metrics([of_accuracies(i, each) for i, each in enumerate(earned)], {})
    assert found["groups/zero_signal"] == 0.75
    assert found["groups/size_one"] == 0.25
    assert found["groups/hit"] == 0.75


def test_a_step_without_a_trained_token_has_no_means_and_does_not_fail() -> None:
    found = metrics([of_accuracies(0, [1.0])], {})
    assert math.isnan(found["entropy/trained"])
    assert found["padding/share"] == 0.0


def test_rewards_are_means_over_prompts_whatever_the_group_sizes() -> None:
    found = metrics([of_accuracies(0, [1.0]), of_accuracies(1, [0.0] * 99)], {})
    assert found["reward/accuracy"] == 0.5
    assert found["reward"] == pytest.approx(0.75)
    assert found["rollouts"] == 100


def test_lag_is_counted_per_token_against_the_version_the_step_starts_from() -> None:
    found = metrics([of_accuracies(0, [1.0], version=3, length=4)], {})
    assert found["lag/mean"] == pytest.approx((2 + 1 + 1 + 1) / 4)
    assert found["lag/max"] == 2


def test_drift_can_be_measured_on_a_few_rollouts_with_tokens_of_a_version_whatever_they_earned() -> None:
    groups = [of_accuracies(i, [1.0] if i != 1 else [0.0] * 3, version=3 + i) for i in range(3)]
    found = measurable(groups, version=5, enough=10)
    later, first = [False, True, True, True], [True, False, False, False]
    assert [s.match.tolist() for s in found] == [later] * 3 + [first]
    assert all(s.scale == s.advantage == 0.0 for s in found)
    assert len(measurable(groups, version=5, enough=4)) == 2
    assert len(measurable(groups, version=5, enough=100)) == 4
    assert measurable(groups, version=7, enough=2) == []


def test_means_are_over_trained_tokens_and_drift_over_matched_ones() -> None:
    found = metrics(
        [of_accuracies(0, [1.0])], {"tokens_trained": 8.0, "entropy": 4.0, "drift": 1.0, "drift_tokens": 2.0}
    )
    assert found["entropy/trained"] == 0.5
    assert found["drift"] == 0.5


def test_entropy_is_estimated_from_all_tokens_also_of_groups_without_signal() -> None:
    sure = replace(rollout([1] * 6, success=True), logprobs=np.full(6, -0.1, np.float32))
    unsure = replace(rollout([1] * 2), logprobs=np.full(2, -0.9, np.float32))
    found = metrics([group(0, [sure]), group(1, [unsure])], {"tokens_trained": 2.0, "entropy": 1.6})
    assert found["entropy"] == pytest.approx((6 * 0.1 + 2 * 0.9) / 8)
    assert found["entropy/trained"] == pytest.approx(0.8)


def test_groups_whose_phases_sampled_from_other_weights_are_counted() -> None:
    def of(versions: list[tuple[Phase, int]]) -> Group:
        spans = [(phase, [VersionSpan(version, 0, 2)]) for phase, version in versions]
        return group(0, [replace(rollout([1, 1], spans=s), phase=phase) for phase, s in spans])

    same, newer, alone = of([("A", 3), ("B", 3)]), of([("A", 3), ("B", 4)]), of([("A", 3)])
    assert [g.mixed_phases for g in (same, newer, alone)] == [False, True, False]
    assert metrics([same, newer, alone], {})["groups/mixed_phases"] == pytest.approx(1 / 3)


def test_padding_and_imbalance_come_from_all_ranks() -> None:
    sums = {"tokens": 90.0, "processed": 100.0, "flops": 900.0, "rank_flops_max": 540.0}
    found = metrics([of_accuracies(0, [1.0])], {f"packing/{name}": value for name, value in sums.items()})
    assert found["padding/share"] == pytest.approx(0.1)
    assert found["imbalance"] == pytest.approx(54 / 45 - 1)
