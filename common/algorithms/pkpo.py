"""PKPO (2505.15201, equation 33, `sloo_minus_one`): the expected maximum of k, also of continuous rewards."""

import numpy as np
from numpy.typing import ArrayLike

from hora_rl.common.algorithms.base import Algorithm, Values


def advantage(rewards: ArrayLike, k: int) -> Values:
    """n·s_i in O(n log n), with s_i the mean over all k-subsets of [i in subset]·(its maximum - its maximum
    without i).

    With ascending rewards, i at rank r and C the binomial, s_i is (r_i C(r, k-1) - Σ_{m<r} r_m C(m, k-2)) /
    C(n, k). Raises ValueError if n < k."""
    values = np.asarray(rewards, dtype=np.float64)
    n = len(values)
    if n < k:
        raise ValueError(f"a group of {n} rollouts has no subset of k = {k}")
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    # C(m, k-1) and C(m, k-2) over C(n, k) for m = 0 .. n-1; C(n-1, k-1)/C(n, k) = k/n.
    with_i = _falling(n - 1, k - 1) * k / n
    below = _falling(n - 1, k - 2) * (k / n) * (k - 1) / (n - k + 1)
    running = np.concatenate([[0.0], np.cumsum(ascending * below)[:-1]])
    result = np.empty(n)
    result[order] = n * (ascending * with_i - running)
    return result


def _falling(top: int, j: int) -> Values:
    """C(m, j)/C(top, j) for m = 0 .. top, computed downwards by (m - j)/m to avoid overflow."""
    m = np.arange(top, 0, -1, dtype=np.float64)
    steps = ((m - j) / m).clip(min=0.0)
    return np.concatenate([[1.0], np.cumprod(steps)])[::-1]


ALGORITHM = Algorithm(advantage=advantage, least_k=2, per_group=True)
