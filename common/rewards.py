"""Rewards of one completion: accuracy and the weighted sum (paper, section 4). The format reward and where
the answer is are in `common/answers.py`, a user's own rewards in `common/user_rewards.py`.

`accuracy`  1.0 where the answer equals the gold answer, else 0.0. The default success.

Everything here is quick and safe on hostile text. Whether an answer equals the gold answer is
`common.equality`'s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from common.config import Config, Reward
from common.equality import usable_gold
from common.errors import ConfigError
from common.reward_names import function_of, is_own
from common.user_rewards import is_group


def gold_test(reward: Reward) -> Callable[[str], bool] | None:
    """What decides whether a row's gold answer can be used with these rewards; None where accuracy is not
    computed: then any answer can."""
    return usable_gold if "accuracy" in reward.names else None


def group_functions(config: Config) -> tuple[str, ...]:
    """The user's functions that rank whole groups. Raises ConfigError where a success or the warm-up gate
    goes by one: both are counted in Phase A, before a group is complete."""
    own = dict.fromkeys(function_of(name) for name in config.reward.names if is_own(name))
    groups = tuple(function for function in own if is_group(function))
    for key, name in (("reward.success", config.reward.success), ("allocation.warmup.reward", config.gate)):
        if name is not None and function_of(name) in groups:
            raise ConfigError(
                f"{key} ({name}) ranks a whole group, and Phase A counts it before its group is complete: "
                "name a reward of single completions"
            )
    return groups


def total(rewards: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Weighted sum of the rewards that have a weight. Raises ValueError naming a reward that is missing."""
    missing = [name for name in weights if name not in rewards]
    if missing:
        raise ValueError(
            f"reward {missing[0]!r} has a weight but was not computed (there are: {sorted(rewards)})"
        )
    return math.fsum(weight * rewards[name] for name, weight in weights.items())
