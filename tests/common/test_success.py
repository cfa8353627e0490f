"""What a reward adds up to, and what counts as success: named by the user, refused where it is missing."""

from typing import Any

import pytest

from hora_rl.actors.verifier.user_rewards import user_reward
from hora_rl.common.answer_format import FORMAT_INSTRUCTIONS
from hora_rl.common.config import Config
from hora_rl.common.data import rewards
from hora_rl.common.data.rewards import Answer, load_reward
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import from_args

OWN = "tests.system.own_reward:brevity"


def config(**sections: Any) -> Config:
    return from_args({"model": {"path": "m"}, "data": {"path": "d.jsonl"}} | sections)


def refused(**sections: Any) -> str:
    with pytest.raises(ConfigError) as error:
        config(**sections)
    return str(error.value)


def test_accuracy_is_success_by_default_also_without_a_weight() -> None:
    reward = config(reward={"weights": {"format": 1.0}}).reward
    assert (reward.success, reward.names) == ("accuracy", ("format", "accuracy"))
    found = [reward.succeeded({"accuracy": a, "format": 1.0}) for a in (0.0, 0.99, 1.0)]
    assert found == [False, False, True]


def test_own_rewards_alone_define_no_success_and_what_needs_one_is_refused_with_the_remedy() -> None:
    reward, likelihood = {"weights": {OWN: 1.0}}, {"objective": {"advantage": "likelihood"}}
    uniform = {"allocation": {"rule": "uniform"}}
    for sections, named in (
        ({}, "allocation.rule (hit_utility)"),
        ({"allocation": {"rule": "my.module:rule"}}, "allocation.rule (my.module:rule)"),
        ({"allocation": {"rule": "uniform", "prior": "hidden-online"}}, "allocation.prior (hidden-online)"),
        (uniform | {"learner": likelihood}, "learner.objective.advantage (likelihood)"),
        (uniform | {"evaluation": {"path": "held.jsonl"}}, "evaluation.path"),
    ):
        assert all(word in refused(reward=reward, **sections) for word in (named, "reward.success", OWN))
    plain = config(reward=reward, allocation={"rule": "uniform"})
    assert plain.reward.success is None
    assert not plain.reward.succeeded({OWN: 1.0})


def test_pass_at_k_needs_a_success_only_of_the_source_that_is_evaluated() -> None:
    sources = {"a": {"path": "a.jsonl"}, "b": {"path": "b.jsonl", "reward": {"weights": {OWN: 1.0}}}}
    plain: dict[str, Any] = {"allocation": {"rule": "uniform"}, "evaluation": {"path": "held.jsonl"}}
    config(data={"sources": sources}, **plain)
    assert "evaluation.path" in refused(data={"sources": dict(reversed(sources.items()))}, **plain)


def test_what_was_decided_survives_the_way_to_the_replicas() -> None:
    for begun in (
        config(reward={"weights": {OWN: 1.0}}, allocation={"rule": "uniform"}),
        config(reward={"weights": {OWN: 1.0}, "success": "accuracy"}),
        config(data={"path": "d.jsonl", "system": None}),
    ):
        assert Config.model_validate(begun.model_dump()) == begun
        assert Config.model_validate_json(begun.model_dump_json()) == begun


def test_the_gate_is_off_where_format_is_not_in_use_and_watches_the_reward_that_is_named() -> None:
    assert config().gate == "format"
    assert config(reward={"weights": {"accuracy": 1.0}}).gate is None
    assert config(allocation={"warmup": {"reward": "accuracy"}}).gate == "accuracy"
    assert config(allocation={"warmup": {"enabled": False}}).gate is None
    assert f"allocation.warmup.reward ({OWN})" in refused(allocation={"warmup": {"reward": OWN}})


def test_a_model_is_asked_for_what_its_rewards_look_for_unless_the_user_says_something() -> None:
    assert config().data.system == FORMAT_INSTRUCTIONS
    for reward, word in (
        ({"answer": "boxed"}, r"\boxed{}"),
        ({"weights": {"accuracy": 1.0}}, "<answer>"),
        ({"weights": {"accuracy": 1.0}, "answer": "lenient"}, "The answer is"),
    ):
        system = config(reward=reward).data.system or ""
        assert (word in system, "<think>" in system) == (True, False)
    for sections, expected in (
        ({"reward": {"weights": {"accuracy": 1.0}, "answer": "my.module:answer"}}, None),
        ({"reward": {"weights": {OWN: 1.0}, "success": OWN}}, None),
        ({"data": {"path": "d.jsonl", "system": None}}, None),
        ({"data": {"path": "d.jsonl", "system": "Add."}}, "Add."),
        ({"data": {"path": "d.jsonl", "template": "Add {problem}."}}, None),
        ({"data": {"path": "arithmetic:2-3"}}, None),
    ):
        assert config(**sections).data.system == expected


def test_the_total_is_the_weighted_sum_and_names_what_is_missing() -> None:
    assert rewards.total({"format": 1.0, "accuracy": 0.0}, {"format": 0.5, "accuracy": 0.5}) == 0.5
    with pytest.raises(ValueError, match="'style:short' has a weight"):
        rewards.total({"format": 1.0}, {"format": 0.5, "style:short": 1.0})


def half(problem: str, completion: str, gold: str) -> float:
    return 1 / len(completion)


def broken(problem: str, completion: str, gold: str) -> float:
    return float("nan")


def test_a_users_reward_is_loaded_by_name_and_must_be_finite() -> None:
    assert user_reward(f"{__name__}:half", Answer("q", "abcd", "g")) == 0.25
    with pytest.raises(ValueError, match=r":broken.* nan"):
        user_reward(f"{__name__}:broken", Answer("q", "abcd", "g"))


@pytest.mark.parametrize("name", [*(f"{__name__}:{f}" for f in ("absent", "OWN", "")), "absent:f", ":"])
def test_a_reward_that_cannot_be_loaded_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name!r}"):
        load_reward(name)
