"""The paper's ablation: everything to the prompts without a success, evenly; to all when there is none.

Under a cap, what those prompts cannot hold goes evenly to the others, so the budget is spent whatever the
rule.
"""

from __future__ import annotations

from hora_rl.allocator.posterior import Int
from hora_rl.allocator.rules.base import Division, Sampled
from hora_rl.allocator.rules.uniform import evenly_first


def _divide(sampled: Sampled, room: Int, budget: int) -> Int:
    return evenly_first(sampled.successes == 0, sampled, room, budget)


HARD_FIRST = Division("hard_first", _divide)
