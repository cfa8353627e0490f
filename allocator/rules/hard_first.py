"""The paper's ablation: everything to the prompts without a success, evenly; to all when there is none.

Under a cap, what those prompts cannot hold goes evenly to the others, so the budget is spent whatever the rule.
"""

from __future__ import annotations

import numpy as np

from allocator.posterior import Int
from allocator.rules.base import Division, evenly


def _divide(successes: Int, room: Int, budget: int) -> Int:
    hard = successes == 0
    extra = np.zeros_like(room)
    first = min(budget, int(room[hard].sum()))
    extra[hard] = evenly(successes[hard], room[hard], first)
    extra[~hard] = evenly(successes[~hard], room[~hard], budget - first)
    return extra


HARD_FIRST = Division("hard_first", _divide)
