"""The smallest groups first: where rollouts go that no gain asks for. A group's size counts Phase A's
rollouts too.
"""

from __future__ import annotations

from hora_rl.allocator.posterior import Int
from hora_rl.allocator.rules.base import Division, Sampled, level_up


def _divide(sampled: Sampled, room: Int, budget: int) -> Int:
    return level_up(sampled.trials, sampled.successes, room, budget)


EVEN_SIZES = Division("even_sizes", _divide)
