"""How noisy one hit is: the moments of scores, estimated without bias from their inner products.

Given c, the c hits of a prompt are independent draws with mean μ = ∇log p and variance σ² (a trace), so
their mean has noise σ²/c. Of the weights w_i that make Σ w_i (mean of i's hits) nearest to Σ μ_i in mean
square, each is c/(c + r) with r = σ²/|μ|², if the μ_i of different prompts are orthogonal; it keeps c/(c +
r) of |μ|². With overlap the weights also borrow from each other: w = (S + D)⁻¹ S 1, S the inner products of
the μ_i and D the diagonal of σ_i²/c_i. A baseline takes from a group's noise the part that its hits and
misses share: r(1 - c/n) in place of r where both are equally noisy, so nothing where hits are rare.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Of n prompts: success rate (n,), μ_i·μ_j of hits (n, n), and the variance of the score of one hit and
    of one miss (n,)."""

    rate: Array
    signal: Array
    hit_noise: Array
    miss_noise: Array

    def __getitem__(self, at: Index) -> Moments:
        return Moments(self.rate[at], self.signal[np.ix_(at, at)], self.hit_noise[at], self.miss_noise[at])

    @property
    def norms(self) -> Array:
        """|μ_i|² (n,); an estimate, which may be negative."""
        return np.diag(self.signal)


def moments(gram: Array, owner: Index, right: Mask, rate: Array) -> Moments:
    """From the scores' inner products (N, N), the prompt of each score and whether it is a hit (N,).

    |μ|² is the mean over pairs of different hits. A miss has mean -p/(1-p) μ, because all scores have mean 0.
    """
    n = len(rate)
    of = (owner[right] == np.arange(n)[:, None]).astype(float)
    size, own = of.sum(1), np.diag(gram)
    sums, squares = of @ gram[np.ix_(right, right)] @ of.T, of @ own[right]
    signal = sums / np.outer(size, size)
    np.fill_diagonal(signal, (np.diag(sums) - squares) / (size * (size - 1)))
    wrong = np.array([own[~right & (owner == i)].mean() for i in range(n)])
    norms = np.diag(signal)
    return Moments(rate, signal, squares / size - norms, wrong - norms * (rate / (1 - rate)) ** 2)


def pooled_r(m: Moments) -> float:
    """Σ σ_i² over Σ |μ_i|²: r of a prompt of typical weight."""
    return float(m.hit_noise.sum() / m.norms.sum())


def overlap(m: Moments) -> float:
    """Mean of μ_i·μ_j over different prompts, over the mean of |μ_i|²: 0 where prompts are orthogonal."""
    n = len(m.rate)
    return float((m.signal.sum() - m.norms.sum()) / (n - 1) / m.norms.sum())


def bootstrap(m: Moments, figure: Callable[[Moments], float], draws: int = 4000) -> tuple[float, float]:
    """95% interval over prompts, for a figure that no pair of prompts enters."""
    random = np.random.default_rng(0)
    found = [figure(m[random.integers(0, len(m.rate), len(m.rate))]) for _ in range(draws)]
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def jackknife(left_out: Array) -> Array:
    """Half of a 95% interval of figures, from their values (n, ...) with each prompt left out."""
    n = len(left_out)
    error = np.sqrt((n - 1) * left_out.var(axis=0))
    return np.asarray(error * stats.t.ppf(0.975, n - 1))


def without(n: int) -> list[Index]:
    """The prompts that remain as each of n is left out."""
    return [np.delete(np.arange(n), i) for i in range(n)]
