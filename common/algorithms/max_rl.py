"""MaxRL (2602.02710): centred successes over their mean."""

import numpy as np
from numpy.typing import ArrayLike

from hora_rl.common.algorithms.base import Algorithm, Values, centred


def advantage(successes: ArrayLike) -> Values:
    """(s - mean)/mean, zero without a hit: expected Σ_{k<n} ∇Pass@k / k at fixed n."""
    values = centred(successes)
    return values / np.asarray(successes, dtype=np.float64).mean() if values.any() else values


ALGORITHM = Algorithm(advantage=advantage, counts=True)
