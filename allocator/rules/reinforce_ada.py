"""Reinforce-Ada (Xiong et al., arXiv 2510.04996) and AR3PO (Zhang et al., arXiv 2509.25808): rounds with an
exit.

Each round draws the same number for every prompt that has not left; a prompt leaves with its first success
(AR3PO, and Reinforce-Ada's positive-focused form), or with k successes and k failures (its balanced form, k
half of the group that is trained on). The papers draw a fixed number a round and spend less when prompts
leave. Here a round's budget is divided evenly over the prompts that are left, so that Γ·G holds; when none is
left, over all. What follows the sampling (AR3PO's reuse of old responses, Reinforce-Ada's choice of n of the
sampled) is no allocation and not done.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from hora_rl.allocator.posterior import Int
from hora_rl.allocator.rules.base import Division, Mask, Sampled
from hora_rl.allocator.rules.uniform import evenly_first


def left(sampled: Sampled, k: int | None) -> Mask:
    """(n,) the prompts that go on: without a success, or with fewer than k of either outcome."""
    if k is None:
        return sampled.successes == 0
    return np.minimum(sampled.successes, sampled.trials - sampled.successes) < k


@lru_cache(maxsize=16)
def reinforce_ada(k: int | None = None, name: str = "reinforce_ada") -> Division:
    """Until the first success, or until k successes and k failures."""

    def divide(sampled: Sampled, room: Int, budget: int) -> Int:
        return evenly_first(left(sampled, k), sampled, room, budget)

    return Division(name if k is None else f"{name}({k})", divide)


REINFORCE_ADA = reinforce_ada()
AR3PO = reinforce_ada(name="ar3po")
HARD_FIRST = reinforce_ada(name="hard_first")
"""The paper's ablation: everything to the prompts without a success, evenly; to all if there is none."""
