"""A user-defined advantage: `package.module:function` of (rewards (n,), successes (n,), phases (n,) "A" or
"B") -> (n,)."""

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hora_rl.common.errors import ConfigError
from hora_rl.common.user_code import load_function


@cache
def _load(name: str) -> Callable[..., ArrayLike]:
    return load_function("learner.objective.advantage", name)


def user_advantage(
    name: str, rewards: NDArray[np.float64], successes: NDArray[np.float64], phases: NDArray[np.str_]
) -> NDArray[np.float64]:
    """The function's advantages (n,) for one group. Raises ConfigError if the function cannot be loaded or
    does not return n finite numbers."""
    given = _load(name)(rewards, successes, phases)
    where = f"learner.objective.advantage ({name})"
    try:
        values = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"{where}: returned a {type(given).__name__}, not numbers") from None
    if values.shape != rewards.shape:
        raise ConfigError(
            f"{where}: returned shape {values.shape} for a group of {len(rewards)} rollouts; it must be "
            f"({len(rewards)},)"
        )
    if not np.isfinite(values).all():
        place = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ConfigError(
            f"{where}: returned {values[place]} for rollout {place} of a group of {len(rewards)} with "
            f"rewards {rewards[:8].tolist()}; advantages must be finite"
        )
    return values


def try_advantage(name: str, pre_rollouts: int, group_size: int) -> None:
    """Call the function on groups that every run meets: no hit, one hit, all hits, with and without Phase
    B."""
    for size in (pre_rollouts, group_size):
        phases = np.array(["A"] * pre_rollouts + ["B"] * (size - pre_rollouts))
        for hits in (0, 1, size):
            successes = (np.arange(size) < hits).astype(np.float64)
            user_advantage(name, successes.copy(), successes, phases)
