"""Rewards of one completion: accuracy, a user's own, and their weighted sum (paper, section 4). The format reward and where
the answer is are in `common/answers.py`.

`accuracy`  1.0 where the answer equals the gold answer, else 0.0. The default success.

Everything here is quick and safe on hostile text. Whether an answer equals the gold answer is `common.equality`'s.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping

from common.config import Reward
from common.equality import usable_gold

UserReward = Callable[[str, str, str], float]
"""A user's reward: (prompt text, completion, gold answer) -> one finite float. Named `package.module:function`."""


def gold_test(reward: Reward) -> Callable[[str], bool] | None:
    """What decides whether a row's gold answer can be used with these rewards; None where accuracy is not computed: then
    any answer can."""
    return usable_gold if "accuracy" in reward.names else None


def total(rewards: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Weighted sum of the rewards that have a weight. Raises ValueError naming a reward that is missing."""
    missing = [name for name in weights if name not in rewards]
    if missing:
        raise ValueError(
            f"reward {missing[0]!r} has a weight but was not computed (there are: {sorted(rewards)})"
        )
    return math.fsum(weight * rewards[name] for name, weight in weights.items())


def load_reward(name: str) -> UserReward:
    """The function that `package.module:function` names. Raises ValueError saying what is wrong with it."""
    module, _, function = name.partition(":")
    try:
        reward = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"reward: cannot load {name!r}: {error}; write package.module:function") from error
    if not callable(reward):
        raise ValueError(f"reward: {name!r} is a {type(reward).__name__}, not a function")
    return reward


def user_reward(name: str, problem: str, completion: str, gold: str) -> float:
    """Value of a user's reward, checked. Raises ValueError where it fails or is not one finite number."""
    reward = load_reward(name)
    try:
        value = reward(problem, completion, gold)
    except (
        Exception
    ) as error:  # whatever a user's code raises: it comes back with the reward's and the problem's name
        raise ValueError(
            f"reward {name!r} raised {type(error).__name__}: {error} (problem {problem!r:.80})"
        ) from error
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"reward {name!r} returned {value!r}: it must return one finite number")
    return float(value)
