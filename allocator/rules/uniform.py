"""Divisions that keep groups even, also over rounds."""

from __future__ import annotations

import numpy as np

from hora_rl.allocator.posterior import Int
from hora_rl.allocator.rules.base import Division, Mask, Sampled, level_up


def _uniform(sampled: Sampled, room: Int, budget: int) -> Int:
    return level_up(sampled.extra, sampled.successes, room, budget)


def _even_sizes(sampled: Sampled, room: Int, budget: int) -> Int:
    return level_up(sampled.trials, sampled.successes, room, budget)


def evenly_first(among: Mask, sampled: Sampled, room: Int, budget: int) -> Int:
    """Evenly among some prompts (n,). What they have no room for goes evenly to the rest."""
    extra = np.zeros_like(room)
    first = min(budget, int(room[among].sum()))
    extra[among] = _uniform(sampled[among], room[among], first)
    extra[~among] = _uniform(sampled[~among], room[~among], budget - first)
    return extra


UNIFORM = Division("uniform", _uniform, needs_counts=False)
"""GRPO: every prompt gets the same number of rollouts."""
EVEN_SIZES = Division("even_sizes", _even_sizes)
"""The smallest groups first, Phase A included: the default for rollouts without a gain."""
