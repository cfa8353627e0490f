"""What GRPO does: every prompt the same number of rollouts. Over rounds their sums are kept even."""

from __future__ import annotations

import numpy as np

from hora_rl.allocator.posterior import Int
from hora_rl.allocator.rules.base import Division, Mask, Sampled, level_up


def _divide(sampled: Sampled, room: Int, budget: int) -> Int:
    return level_up(sampled.extra, sampled.successes, room, budget)


def evenly_first(among: Mask, sampled: Sampled, room: Int, budget: int) -> Int:
    """Evenly among some of the prompts (n,), and what they have no room for evenly among the others."""
    extra = np.zeros_like(room)
    first = min(budget, int(room[among].sum()))
    extra[among] = _divide(sampled[among], room[among], first)
    extra[~among] = _divide(sampled[~among], room[~among], budget - first)
    return extra


UNIFORM = Division("uniform", _divide, needs_counts=False)
