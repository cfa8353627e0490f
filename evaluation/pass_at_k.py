"""Unbiased Pass@K from N samples per problem, with intervals (paper, section 4, equation for Pass@K).

    Pass@K = mean over problems of 1 - C(N - c, K) / C(N, K),    c correct among N, K <= N

The quotient of binomials is a product of m = min(c, K) factors, Π_{i<m} (1 - max(c, K) / (N - i)), summed as
logarithms. No binomial is computed, so large N and tiny Pass@K keep their digits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 4000
"""Bootstrap resamples: the ends of a 95% interval repeat to a few tenths of a point."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Pass@`k`, between 0 and 1, with its bootstrap interval over problems."""

    k: int
    value: float
    low: float
    high: float


def pass_at_k(correct: ArrayLike, samples: int, k: int) -> NDArray[np.float64]:
    """Pass@K of each problem, (P,) in [0, 1], from correct counts (P,) among `samples` = N. Raises ValueError
    if K > N or a count is outside 0..N."""
    counts = np.asarray(correct)
    if counts.ndim != 1 or counts.size == 0:
        raise ValueError(
            f"correct counts must be a list of at least one problem, not of shape {counts.shape}"
        )
    if not np.issubdtype(counts.dtype, np.integer):
        raise ValueError(f"correct counts must be integers, not {counts.dtype}")
    if not 1 <= k <= samples:
        raise ValueError(
            f"Pass@{k} needs K between 1 and N = {samples}: draw at least {k} samples per problem"
        )
    wrong = np.flatnonzero((counts < 0) | (counts > samples))
    if wrong.size:
        raise ValueError(f"problem {wrong[0]} has {counts[wrong[0]]} correct of {samples} samples")
    distinct, index = np.unique(counts, return_inverse=True)
    return np.array([_one(int(c), samples, k) for c in distinct])[index]


def _one(c: int, n: int, k: int) -> float:
    if c + k > n:  # some of the K must be correct
        return 1.0
    i = np.arange(min(c, k), dtype=np.float64)
    return float(-np.expm1(np.log1p(-max(c, k) / (n - i)).sum()))


def estimates(correct: ArrayLike, samples: int, ks: Sequence[int], seed: int = 0) -> list[Estimate]:
    """Mean Pass@K over problems for each K, with the 95% percentile bootstrap interval over problems. All K,
    and all models with the same seed and number of problems, share resamples, so curves compare point by
    point. With one problem the interval is its value."""
    return estimates_of_runs([(correct, samples)], ks, seed)


def estimates_of_runs(
    runs: Sequence[tuple[ArrayLike, int]], ks: Sequence[int], seed: int = 0
) -> list[Estimate]:
    """As `estimates`, of the mean over runs of each problem. `runs`: correct counts (P,) and N."""
    per_run = [[pass_at_k(correct, samples, k) for k in ks] for correct, samples in runs]
    per_problem = np.mean(per_run, axis=0).T  # (P, K)
    problems = len(per_problem)
    draws = np.random.default_rng(seed).multinomial(problems, np.full(problems, 1 / problems), size=RESAMPLES)
    low, high = np.quantile(draws @ per_problem / problems, [0.025, 0.975], axis=0)
    rows = zip(ks, per_problem.mean(axis=0), low, high, strict=True)
    return [Estimate(k, *map(float, row)) for k, *row in rows]
