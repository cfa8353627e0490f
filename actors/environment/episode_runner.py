"""Runs one episode of an environment, or reports why the episode failed.

An episode that reaches a limit of turns or tokens is valid. An episode fails if the environment raises,
hangs, changes the history, ends before the first turn or lacks a reward. A failed episode never counts as a
wrong answer.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from hora_rl.actors.environment.policy import Policy
from hora_rl.actors.environment.protocol import Episode, EpisodeFunction, EpisodeOver, Tools
from hora_rl.actors.environment.tools import EpisodeTools
from hora_rl.common.config.reward import EPISODE
from hora_rl.common.data.rows import Row
from hora_rl.common.errors import EnvironmentFault, one_line
from hora_rl.common.types import Completion
from hora_rl.common.user_code import is_finite

LOOK_S = 0.5
GRACE_S = 1.0
"""Seconds to wait for a cancelled environment to end."""


async def run_episode(function: EpisodeFunction, row: Row, policy: Policy, tools: Tools) -> Completion:
    """One episode on `row`, under the configuration of `policy`. Raises EnvironmentFault if the environment
    fails, and the sampling error if a turn could not be sampled."""
    try:
        rewards = await _within_limit(_called(function, row, policy, EpisodeTools(tools, policy)), policy)
    finally:
        policy.close()
    if policy.lost is not None:  # the environment caught the error and continued
        raise policy.lost
    names = policy.config.reward.names
    wanted = [name.removeprefix(EPISODE) for name in names if name.startswith(EPISODE)]
    earned = dict.fromkeys(wanted, 0.0) if rewards is None else _checked(rewards, wanted)
    return policy.conversation.completion(earned, cut=policy.over)


async def _within_limit(
    episode: Coroutine[Any, Any, Mapping[str, float]], policy: Policy
) -> Mapping[str, float] | None:
    """Rewards of the episode; None if a limit ended the episode. Time spent sampling does not count."""
    task, limit_s = asyncio.ensure_future(episode), policy.config.environment.time_limit_s
    try:
        while not task.done():
            left = limit_s - policy.own_s
            if left <= 0:
                raise EnvironmentFault(f"hangs for more than {limit_s:g} s of its own")
            await asyncio.wait({task}, timeout=min(LOOK_S, left))
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE_S)
    if task.cancelled():  # it awaited something that was
        raise EnvironmentFault("raises CancelledError")
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, EpisodeOver):
        return None
    if policy.lost is not None:
        raise policy.lost from error
    if isinstance(error, EnvironmentFault):
        raise error
    raise EnvironmentFault(f"raises {type(error).__name__}: {one_line(error)}") from error


async def _called(function: EpisodeFunction, row: Row, policy: Policy, tools: Tools) -> Mapping[str, float]:
    ended = await function(row, policy, tools)
    if not isinstance(ended, Episode):
        raise EnvironmentFault(f"returns {type(ended).__name__}, not an Episode")
    if not isinstance(ended.rewards, Mapping):
        raise EnvironmentFault(f"returns {ended.rewards!r:.60} as rewards: they must be numbers by name")
    return ended.rewards


def _checked(rewards: Mapping[str, float], wanted: list[str]) -> dict[str, float]:
    """The `wanted` rewards. Raises EnvironmentFault if one is missing or not finite."""
    for name in wanted:
        value = rewards.get(name)
        if value is None:
            there = ", ".join(sorted(rewards)) or "none"
            raise EnvironmentFault(
                f"gives no reward {name!r}, which the configuration uses (it gives: {there})"
            )
        if not is_finite(value):
            raise EnvironmentFault(f"gives {value!r:.60} as reward {name!r}: it must be a finite number")
    return {name: float(rewards[name]) for name in wanted}
