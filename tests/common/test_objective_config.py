"""What an objective cannot be is refused with one line that names keys, values and remedy."""

from typing import Any

import pytest

from hora_rl.common.errors import ConfigError
from hora_rl.common.load import dump_yaml, from_args, load

GOOD: dict[str, Any] = {"model": {"path": "org/model"}, "data": {"path": "arithmetic"}}


def with_objective(values: dict[str, Any], **sections: Any) -> Any:
    return from_args({**GOOD, **sections, "learner": {"objective": values}})


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"advantage": "maxrl"}, "learner.objective.advantage (maxrl): none of grpo"),
        ({"advantage": "pass_at_k"}, "learner.objective.k (None) belongs to advantage pass_at_k or pkpo"),
        ({"k": 4}, "learner.objective.advantage is grpo: remove k"),
        ({"advantage": "pkpo", "k": 1}, "learner.objective.k (1): pkpo takes its baseline"),
        ({"advantage": "pass_at_k", "k": 9}, "learner.objective.k (9) exceeds the smallest group of rule"),
        ({"baseline": "wald"}, "learner.objective.baseline (wald) belongs to advantage likelihood"),
        ({"advantage": "rloo", "scale": "batch"}, "learner.objective.scale (batch) belongs to advantage"),
        ({"multi_objective_aggregation": "normalize_then_sum", "scale": "group"}, "(normalize_then_sum)"),
        ({"aggregate": "token", "advantage": "dr_grpo"}, "learner.objective.aggregate (token) divides by"),
        ({"aggregate": "token", "normalisation": "constant"}, "learner.objective.normalisation (constant)"),
        ({"normalisation": "none"}, "learner.objective.normalisation (none) contradicts"),
        ({"aggregate": "token", "advantage": "likelihood"}, "has another divisor: use aggregate group"),
        ({"clip_dual": 1.1}, "learner.objective.clip_dual (1.1) belongs to loss clip and must exceed 1 +"),
        ({"clip_dual": 3.0, "loss": "sapo"}, "learner.objective.loss is sapo"),
        ({"overlong_cache": 100}, "learner.objective.overlong_cache (100) belongs to overlong soft"),
        ({"overlong": "soft", "overlong_cache": 4096}, "learner.objective.overlong_cache (4096) must be at"),
        ({"group_weight": "as_if"}, "learner.objective.group_weight.as_if (None) names the rule of kind"),
        ({"group_weight": {"lo": 4.0}}, "learner.objective.group_weight.lo (4.0) exceeds"),
        ({"group_weight": "size"}, "learner.objective.group_weight.kind"),
        ({"group_weight": {"as_if": "hit_utility"}}, "learner.objective.group_weight.as_if (hit_utility)"),
        ({"phase_weight": "unbiased"}, "learner.objective.phase_weight (unbiased) needs advantage rloo"),
        ({"lambda": 0}, "learner.objective.lambda (0): Input should be greater than 0"),
    ],
)
def test_each_contradiction_is_one_line(values: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_objective(values)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_uniform_sampling_never_makes_a_group_smaller_than_g() -> None:
    config = with_objective({"advantage": "pkpo", "k": 32}, allocation={"rule": "uniform"})
    assert config.learner.objective.k == 32


def test_every_value_comes_back_from_the_dump_and_from_the_command_line(tmp_path) -> None:  # type: ignore[no-untyped-def]
    config = with_objective({"advantage": "weighted_reinforce", "lambda": 0.3})
    file = tmp_path / "dumped.yaml"
    file.write_text(dump_yaml(config))
    assert load(str(file)) == config
    assert load(str(file), ["learner.objective.lambda=0.2"]).learner.objective.lambda_ == 0.2


def test_token_aggregation_has_no_z_without_being_asked() -> None:
    assert with_objective({"aggregate": "token"}).learner.objective.normalisation == "none"


def test_weights_that_keep_the_expectation_need_a_phase_b_of_every_prompt() -> None:
    unbiased = {"advantage": "rloo", "phase_weight": "unbiased"}
    assert with_objective(unbiased).learner.objective.phase_weight == "unbiased"
    for sections, line in (
        ({"allocation": {"rule": "hard_first"}}, "needs a Phase B of every prompt, and rule hard_first"),
        ({"allocation": {"rule": "knapsack"}}, "needs a Phase B of every prompt, and rule knapsack"),
        ({"allocation": {"stop": "hit", "rounds": 4}}, "rule hit_utility with stop hit"),
        ({"allocation": {"budget": "tokens"}}, "budget tokens leaves some without"),
        (
            {"allocation": {"rounds": 4}},
            "needs sizes that depend only on Phase A, not allocation.rounds 4",
        ),
        ({"rollout": {"pre_rollouts": 1}}, "rollout.pre_rollouts is 1: use at least 2"),
    ):
        with pytest.raises(ConfigError) as caught:
            with_objective(unbiased, **sections)
        assert line in str(caught.value)


@pytest.mark.parametrize(
    ("written", "kind"),
    [("difficulty", "difficulty"), ({"as_if": "hit_utility"}, "as_if"), ({"kind": "sqrt_size"}, "sqrt_size")],
)
def test_a_group_weight_may_be_named_in_one_word(written: Any, kind: str) -> None:
    config = with_objective({"group_weight": written}, allocation={"rule": "uniform"})
    assert config.learner.objective.group_weight.kind == kind
    assert from_args(config.model_dump(mode="json")) == config
