"""What GRPO does: every prompt the same number of additional rollouts. Over rounds their sums are kept even."""

from __future__ import annotations

from allocator.posterior import Int
from allocator.rules.base import Division, Sampled, level_up


def _divide(sampled: Sampled, room: Int, budget: int) -> Int:
    return level_up(sampled.extra, sampled.successes, room, budget)


UNIFORM = Division("uniform", _divide)
