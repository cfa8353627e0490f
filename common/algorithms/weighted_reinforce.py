"""Weighted REINFORCE (2506.01347): groups without a hit also have a gradient."""

import numpy as np
from numpy.typing import ArrayLike

from hora_rl.common.algorithms.base import Algorithm, Values

HIT = 0.1


def advantage(successes: ArrayLike) -> Values:
    """The paper's λ = 0.1 for a hit, -1 for a miss."""
    return np.where(np.asarray(successes, dtype=bool), HIT, -1.0)


ALGORITHM = Algorithm(advantage=advantage, counts=True)
