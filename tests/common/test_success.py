"""What a reward adds up to, and what counts as success: named by the user, refused where it is missing."""

from pathlib import Path
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
    for sections, what in (
        ({}, "allocation.rule (hit_utility)"),
        ({"allocation": {"rule": "my.module:rule"}}, "allocation.rule (my.module:rule)"),
        ({"allocation": {"rule": "uniform", "prior": "hidden-online"}}, "allocation.prior (hidden-online)"),
        (
            {"allocation": {"rule": "uniform"}, "learner": likelihood},
            "learner.objective.advantage (likelihood)",
        ),
        ({"allocation": {"rule": "uniform"}, "evaluation": {"path": "held.jsonl"}}, "evaluation.path"),
    ):
        message = refused(reward=reward, **sections)
        assert what in message
        assert f"name one in reward.success (rewards with a weight: {OWN})" in message
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
    message = refused(allocation={"warmup": {"reward": OWN}})
    assert f"allocation.warmup.reward ({OWN}) is not computed (rewards: format, accuracy)" in message


def test_a_model_is_asked_for_what_its_rewards_look_for_unless_the_user_says_something() -> None:
    own = {"path": "d.jsonl"}
    assert config().data.system == FORMAT_INSTRUCTIONS
    for reward, word in (
        ({"answer": "boxed"}, r"\boxed{}"),
        ({"weights": {"accuracy": 1.0}}, "<answer>"),
        ({"weights": {"accuracy": 1.0}, "answer": "lenient"}, "The answer is"),
    ):
        told = config(reward=reward).data.system or ""
        assert (word in told, "<think>" in told) == (True, False)
    assert config(reward={"weights": {"accuracy": 1.0}, "answer": "my.module:answer"}).data.system is None
    assert config(data=own | {"system": None}).data.system is None
    assert config(data=own | {"system": "Add."}).data.system == "Add."
    assert config(data=own | {"template": "Add {problem}."}).data.system is None
    assert config(data={"path": "arithmetic:2-3"}).data.system is None
    assert config(reward={"weights": {OWN: 1.0}, "success": OWN}).data.system is None


def test_the_total_is_the_weighted_sum_and_names_what_is_missing() -> None:
    assert rewards.total({"format": 1.0, "accuracy": 0.0}, {"format": 0.5, "accuracy": 0.5}) == 0.5
    with pytest.raises(ValueError, match="'style:short' has a weight"):
        rewards.total({"format": 1.0}, {"format": 0.5, "style:short": 1.0})


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_rewards.py").write_text(
        "def brief(problem, completion, gold): return 1 / len(completion)\n"
        "def broken(problem, completion, gold): return float('nan')\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own")
def test_a_users_reward_is_loaded_by_name_and_must_be_finite() -> None:
    assert user_reward("own_rewards:brief", Answer("q", "abcd", "g")) == 0.25
    with pytest.raises(ValueError, match=r"own_rewards:broken.* returned nan"):
        user_reward("own_rewards:broken", Answer("q", "abcd", "g"))


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("name", [*(f"own_rewards:{f}" for f in ("absent", "number", "")), "absent:f", ":"])
def test_a_reward_that_cannot_be_loaded_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name!r}"):
        load_reward(name)
