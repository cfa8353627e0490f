"""Group-relative advantages of one ragged group. Pure."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

STD_FLOOR = 1e-4
Kind = Literal["grpo", "dr_grpo", "rloo"]


def advantages(rewards: ArrayLike, kind: Kind) -> NDArray[np.float64]:
    """A (G_i,) from rewards R (G_i,) of one group.

    grpo: (R - mean) / (std + 1e-4), std with n - 1 as in TRL, zero where all rewards are equal (paper, 3.1);
    dr_grpo: R - mean; rloo: R minus the mean of the others. A group of one has nothing to compare with: zero.
    """
    values = np.asarray(rewards, dtype=np.float64)
    n = len(values)
    if n < 2 or np.ptp(values) == 0.0:
        return np.zeros(n)
    centred = values - values.mean()
    if kind == "grpo":
        return centred / (values.std(ddof=1) + STD_FLOOR)
    if kind == "rloo":
        return centred * n / (n - 1)
    return centred
