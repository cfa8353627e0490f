"""The success bit is set where rewards arrive, by the run's own definition, for training and evaluation
alike."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from hora_rl.actors.coordinator.calls import verifier_calls
from hora_rl.actors.verifier.pool import VerifierPool
from hora_rl.common.config import Config, Reward
from hora_rl.common.types import Completion, Prompt, Scored, VersionSpan

OWN = "tests.system.own_reward:brevity"


class Handle:
    """A handle whose replica gives these rewards to every completion."""

    def __init__(self, *rewards: dict[str, float]) -> None:
        self.rewards = list(rewards)
        self.asked: list[Any] = []

    def options(self, **_: str) -> Any:
        return self

    async def remote(self, items: list[Any]) -> list[dict[str, float]]:
        self.asked = items
        return self.rewards


def test_success_follows_the_reward_that_the_run_names() -> None:
    reward = {"weights": {"format": 0.5, OWN: 0.5}, "success": OWN, "success_at": 0.7}
    config = Config.model_validate({"model": {"path": "m"}, "data": {"path": "d"}, "reward": reward})
    one, two = {"format": 1.0, OWN: 0.6}, {"format": 0.0, OWN: 0.7}
    score = verifier_calls(Handle(one, two), config)  # type: ignore[arg-type]
    tokens = np.array([1], np.int32)
    completion = Completion("x", tokens, np.zeros(1, np.float32), "stop", (VersionSpan(0, 0, 1),))
    found = asyncio.run(score(Prompt(0, "p", "a", tokens), [completion] * 2))
    assert found == [Scored(one, False), Scored(two, True)]


def test_a_thought_that_the_template_opened_is_judged_with_the_completion() -> None:
    config = Config.model_validate({"model": {"path": "m"}, "data": {"path": "d"}})
    handle, tokens = Handle({"format": 1.0, "accuracy": 1.0}), np.array([1], np.int32)
    completion = Completion("x</think>", tokens, np.zeros(1, np.float32), "stop", (VersionSpan(0, 0, 1),))
    score = verifier_calls(handle, config)  # type: ignore[arg-type]
    asyncio.run(score(Prompt(0, "p", "a", tokens, prefill="<think>\n"), [completion]))
    assert [a[:3] for a in handle.asked] == [("p", "<think>\nx</think>", "a")]


def test_the_answer_is_found_as_the_run_says_also_by_a_users_function() -> None:
    async def score(answer: str, text: str) -> dict[str, float]:
        pool = VerifierPool(Reward(answer=answer))
        try:
            return (await pool.score_batch([("1+1=?", text, "2")]))[0]
        finally:
            pool.close()

    right = {"format": 1.0, "accuracy": 1.0}
    assert asyncio.run(score("boxed", r"<think>1+1</think>So \boxed{2}.")) == right
    assert asyncio.run(score("boxed", "<think>1+1</think><answer>2</answer>")) == {
        "format": 0.0,
        "accuracy": 0.0,
    }
    assert asyncio.run(score("tests.system.own_reward:last_word", "<think>1+1</think> it is 2")) == right


def test_only_the_rewards_in_use_are_computed_and_success_is_one_of_them() -> None:
    async def score(reward: Reward) -> list[dict[str, float]]:
        pool = VerifierPool(reward)
        try:
            return await pool.score_batch([("1+1=?", "<think>1</think><answer>2</answer>", "2")])
        finally:
            pool.close()

    assert asyncio.run(score(Reward(weights={"format": 1.0}))) == [{"format": 1.0, "accuracy": 1.0}]
    assert asyncio.run(score(Reward(weights={"accuracy": 1.0}))) == [{"accuracy": 1.0}]
    assert asyncio.run(score(Reward(weights={"format": 1.0}, success=None))) == [{"format": 1.0}]
