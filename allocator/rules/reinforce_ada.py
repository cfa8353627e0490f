"""Reinforce-Ada (Xiong et al., arXiv 2510.04996) and AR3PO (Zhang et al., arXiv 2509.25808): exits.

Every round samples the same number for each active prompt. A prompt exits at its first success (AR3PO, and
Reinforce-Ada's positive-focused form), or with k successes and k failures (its balanced form, k half of the
trained group). The papers fix the number per round and spend less when prompts exit. Here a round's budget is
divided evenly over active prompts, or over all if none is active, so that Γ·G holds. Later steps of both
papers (reuse of old responses, downsampling) are not allocation and not included.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from hora_rl.allocator.posterior import Int
from hora_rl.allocator.rules.base import Division, Mask, Sampled
from hora_rl.allocator.rules.uniform import evenly_first


def left(sampled: Sampled, k: int | None) -> Mask:
    """(n,) active prompts: without a success, or with fewer than k of either outcome."""
    if k is None:
        return sampled.successes == 0
    return np.minimum(sampled.successes, sampled.trials - sampled.successes) < k


@lru_cache(maxsize=16)
def reinforce_ada(k: int | None = None, name: str = "reinforce_ada") -> Division:
    """Sample until the first success, or until k successes and k failures."""

    def divide(sampled: Sampled, room: Int, budget: int) -> Int:
        return evenly_first(left(sampled, k), sampled, room, budget)

    return Division(name if k is None else f"{name}({k})", divide)


REINFORCE_ADA = reinforce_ada()
AR3PO = reinforce_ada(name="ar3po")
HARD_FIRST = reinforce_ada(name="hard_first")
"""The paper's ablation: all rollouts to prompts without a success, evenly; to all if there is none."""
