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


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Of the scored hits of n prompts, then of their scored misses: how many there are (2n,), the inner
    products of the sums of their scores (2n, 2n), and the sums of their squared norms (2n,)."""

    count: Index
    inner: Array
    squares: Array

    @property
    def means(self) -> Array:
        """(2n, 2n) inner products of the mean scores of different sets."""
        return self.inner / np.outer(self.count, self.count)


def sums(scores: Array, owner: Index, right: Mask) -> Sums:
    """Of the scores (N, width), the prompt of each and whether it is a hit (N,)."""
    n = owner.max() + 1
    of = (np.where(right, owner, owner + n) == np.arange(2 * n)[:, None]).astype(float)
    total = of @ scores
    return Sums(of.sum(1).astype(int), total @ total.T, of @ np.square(scores).sum(1))


def moments(s: Sums, rate: Array) -> Moments:
    """Of prompts with success rates (n,).

    |μ|² is the mean over pairs of different hits. A miss has mean -p/(1-p) μ, because all scores have mean 0.
    """
    n, each = len(rate), s.squares / s.count
    hits = s.count[:n]
    signal = s.means[:n, :n].copy()
    norms = (np.diag(s.inner)[:n] - s.squares[:n]) / (hits * (hits - 1))
    np.fill_diagonal(signal, norms)
    return Moments(rate, signal, each[:n] - norms, each[n:] - norms * (rate / (1 - rate)) ** 2)


def pooled_r(m: Moments) -> float:
    """Σ σ_i² over Σ |μ_i|²: r of a prompt of typical weight."""
    return float(m.hit_noise.sum() / m.norms.sum())


def overlap(m: Moments) -> float:
    """Mean of μ_i·μ_j over different prompts, over the mean of |μ_i|²: 0 where prompts are orthogonal."""
    n = len(m.rate)
    return float((m.signal.sum() - m.norms.sum()) / (n - 1) / m.norms.sum())


def shared_r(m: Moments) -> float:
    """r' = r/(1 - ρ), the noise of a hit in `expected_worth` and `shrunken` where prompts overlap by ρ."""
    return pooled_r(m) / (1 - overlap(m))


def bootstrap(m: Moments, figure: Callable[[Moments], float], draws: int = 4000) -> tuple[float, float]:
    """95% interval over prompts, for a figure that no pair of prompts enters."""
    random = np.random.default_rng(0)
    figures = [figure(m[random.integers(0, len(m.rate), len(m.rate))]) for _ in range(draws)]
    low, high = np.quantile(figures, [0.025, 0.975])
    return float(low), float(high)


def half_interval(figures: Array) -> Array:
    """Half of a 95% interval of the mean of independent figures (n, ...)."""
    return np.asarray(stats.sem(figures, axis=0) * stats.t.ppf(0.975, len(figures) - 1))


def jackknife(left_out: Array) -> Array:
    """Half of a 95% interval of figures, from their values (n, ...) with each prompt left out."""
    return half_interval(left_out) * (len(left_out) - 1)


def jackknife_ratio(figure: float, left_out: Array) -> tuple[float, float]:
    """95% interval of a positive figure, symmetric in its logarithm, from values (n,) without each prompt."""
    half = float(jackknife(np.log(left_out)))
    return figure * float(np.exp(-half)), figure * float(np.exp(half))


def without(n: int) -> list[Index]:
    """The prompts that remain as each of n is left out."""
    return [np.delete(np.arange(n), i) for i in range(n)]
