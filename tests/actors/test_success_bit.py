"""The success bit is set where rewards arrive, by the run's own definition, for training and evaluation
alike."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from hora_rl.actors.coordinator.calls import verifier_calls
from hora_rl.actors.verifier.pool import VerifierPool
from hora_rl.common.config import Config, Reward
from hora_rl.common.types import Prompt, Scored
from tests.support.groups import completion
from tests.support.handles import Handle

OWN = "tests.system.own_reward:brevity"
TAGGED = "<think>1+1</think><answer>2</answer>"
RIGHT, WRONG = {"format": 1.0, "accuracy": 1.0}, {"format": 0.0, "accuracy": 0.0}


async def test_success_follows_the_reward_that_the_run_names_and_is_judged_with_an_opened_thought() -> None:
    reward = {"weights": {"format": 0.5, OWN: 0.5}, "success": OWN, "success_at": 0.7}
    config = Config.model_validate({"model": {"path": "m"}, "data": {"path": "d"}, "reward": reward})
    one, two = {"format": 1.0, OWN: 0.6}, {"format": 0.0, OWN: 0.7}
    handle = Handle(lambda items: [one, two])
    prompt = Prompt(0, "p", "a", np.array([1], np.int32), prefill="<think>\n")
    done = [completion(text="x</think>")] * 2
    found = await verifier_calls(handle, config)(prompt, done)  # type: ignore[arg-type]
    assert found == [Scored(one, False), Scored(two, True)]
    (items,) = handle.asked
    assert [item[:3] for item in items] == [("p", "<think>\nx</think>", "a")] * 2


@pytest.mark.parametrize(
    ("reward", "text", "found"),
    [
        ({"answer": "boxed"}, r"<think>1+1</think>So \boxed{2}.", RIGHT),
        ({"answer": "boxed"}, TAGGED, WRONG),
        ({"answer": "tests.system.own_reward:last_word"}, "<think>1+1</think> it is 2", RIGHT),
        ({"weights": {"format": 1.0}}, TAGGED, RIGHT),
        ({"weights": {"accuracy": 1.0}}, TAGGED, {"accuracy": 1.0}),
        ({"weights": {"format": 1.0}, "success": None}, TAGGED, {"format": 1.0}),
    ],
)
async def test_the_answer_is_found_as_the_run_says_and_rewards_in_use_and_success_alone_are_computed(
    reward: dict[str, object], text: str, found: dict[str, float]
) -> None:
    with closing(VerifierPool(Reward.model_validate(reward))) as pool:
        assert await pool.score_batch([("1+1=?", text, "2")]) == [found]
