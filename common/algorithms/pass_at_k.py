"""Pass@k training (2508.10751, equations 14 and 15)."""

import numpy as np
from numpy.typing import ArrayLike

from hora_rl.common.algorithms.base import Algorithm, Values


def advantage(successes: ArrayLike, k: int) -> Values:
    """Mean of (subset's success - mean)/std over all k-subsets with the rollout. Raises ValueError if n <
    k."""
    hits = np.asarray(successes, dtype=bool)
    n, misses = len(hits), int((~hits).sum())
    fail = subsets(misses, k, n)  # probability that a random k-subset holds no hit
    spread = float(np.sqrt(fail * (1.0 - fail)))
    if spread == 0.0:
        return np.zeros(n)
    fail_beside_a_miss = subsets(misses - 1, k - 1, n - 1)
    return np.where(hits, fail, fail - fail_beside_a_miss) / spread


def subsets(marked: int, k: int, n: int) -> float:
    """C(marked, k)/C(n, k): probability that k of n, drawn without replacement, are all marked."""
    if n < k:
        raise ValueError(f"a group of {n} rollouts has no subset of k = {k}")
    ratios = (marked - np.arange(k)) / (n - np.arange(k))
    return float(np.prod(ratios.clip(min=0.0)))


ALGORITHM = Algorithm(advantage=advantage, counts=True, least_k=1)
