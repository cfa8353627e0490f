"""The paper's ablation: everything to the prompts without a success, evenly; to all when there is none.

Under a cap, what those prompts cannot hold goes evenly to the others, so the budget is spent whatever the rule.
"""

from __future__ import annotations

import numpy as np

from allocator.posterior import Int
from allocator.rules.base import Division, Sampled
from allocator.rules.uniform import UNIFORM


def _divide(sampled: Sampled, room: Int, budget: int) -> Int:
    hard = sampled.successes == 0
    extra = np.zeros_like(room)
    first = min(budget, int(room[hard].sum()))
    extra[hard] = UNIFORM.divide(sampled[hard], room[hard], first)
    extra[~hard] = UNIFORM.divide(sampled[~hard], room[~hard], budget - first)
    return extra


HARD_FIRST = Division("hard_first", _divide)
