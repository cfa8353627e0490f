"""Order of gains that float64 cannot tell apart: decided by exact rational arithmetic, then by the project's
rule.

Higher gain first; of equal gains the prompt with fewer successes, then the lower level, then the lower index.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from hora_rl.allocator.posterior import Float, Int

# Log gains come from sums of a few dozen terms of size up to 1e2: their error stays below this.
NEAR = 1e-9


def exact_order(log_gain: Float, successes: Int, tie: Int, exact: Callable[[int], Fraction] | None) -> Int:
    """Permutation of the entries (E,): descending gain, then ascending successes, then ascending `tie`.

    `exact(e)` is the gain of entry e as a Fraction; without it equal means equal in float64.
    """
    order = np.lexsort((tie, successes, -log_gain))
    if exact is None or len(order) < 2:
        return order
    close = np.flatnonzero(-np.diff(log_gain[order]) < NEAR)
    start = 0
    while start < len(close):
        end = start
        while end + 1 < len(close) and close[end + 1] == close[end] + 1:
            end += 1
        run = slice(int(close[start]), int(close[end]) + 2)
        entries = order[run].tolist()
        entries.sort(key=lambda e: (-exact(e), successes[e], tie[e]))
        order[run] = entries
        start = end + 1
    return order
