"""Arms of a study compared on the same seeds: differences of curves, Student's t, Holm's correction, what
could be detected."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats

LEVEL = 0.95
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean difference over paired seeds with its 95% interval and the p-value of a two-sided t test; NaN
    where one seed cannot tell."""

    value: float
    low: float
    high: float
    p: float
    seeds: int


def paired_difference(arm: ArrayLike, baseline: ArrayLike) -> Difference:
    """`arm` less `baseline`, both (S,) on the same seeds in the same order. Raises ValueError otherwise."""
    a, b = np.asarray(arm, dtype=np.float64), np.asarray(baseline, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1 or a.size == 0:
        raise ValueError(f"arms of shapes {a.shape} and {b.shape} cannot be paired by seed")
    d, n = a - b, a.size
    if n == 1:
        return Difference(float(d[0]), math.nan, math.nan, math.nan, 1)
    error = float(stats.sem(d))
    half = float(stats.t.ppf(0.5 + LEVEL / 2, n - 1)) * error
    # Without spread t is infinite, and without an effect either it is 0 / 0.
    t = abs(float(d.mean())) / error if error else math.inf * bool(d[0])
    p = 1.0 if math.isnan(t) else float(2 * stats.t.sf(t, n - 1))
    return Difference(float(d.mean()), float(d.mean()) - half, float(d.mean()) + half, p, n)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down correction: adjusted p-values that hold the family's error over all arms."""
    adjusted, highest = dict[str, float](), 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda n: p_values[n])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = highest
    return adjusted


def area(steps: ArrayLike, values: ArrayLike) -> float:
    """Mean height of a curve over its steps: the area under it (trapezoids) over their range."""
    x, y = np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if x.size < 2:
        raise ValueError("an area needs two points of a curve at least")
    return float(np.trapezoid(y, x) / (x[-1] - x[0]))


def at_matched(level: float, matched: ArrayLike, values: ArrayLike) -> float:
    """`values` where the curve `matched` first reaches `level`, by linear interpolation; NaN where it never
    does."""
    x, y = np.asarray(matched, dtype=np.float64), np.asarray(values, dtype=np.float64)
    reached = np.flatnonzero(x >= level)
    if reached.size == 0:
        return math.nan
    i = int(reached[0])
    if i == 0 or x[i] == x[i - 1]:
        return float(y[i])
    share = (level - x[i - 1]) / (x[i] - x[i - 1])
    return float(y[i - 1] + share * (y[i] - y[i - 1]))


def not_inferior(difference: Difference, margin: float) -> bool:
    """Whether the interval excludes a loss of `margin` or more. False where one seed cannot tell."""
    return difference.low > -margin


def power(effect: float, deviation: float, seeds: int, alpha: float = 0.05) -> float:
    """Probability that a two-sided paired t test at `alpha` sees `effect`, where paired differences have this
    deviation."""
    df, shift = seeds - 1, effect / deviation * math.sqrt(seeds)
    bound = float(stats.t.ppf(1 - alpha / 2, df))
    # Far from 0 scipy gives NaN for the other tail, which is below 1e-15 there.
    return float(stats.nct.sf(bound, df, shift) + np.nan_to_num(stats.nct.cdf(-bound, df, shift)))


def detectable(deviation: float, seeds: int, alpha: float = 0.05, wanted: float = 0.8) -> float:
    """The least effect that is seen with probability `wanted`; see `power`. Raises ValueError for fewer than
    two seeds."""
    if seeds < 2:
        raise ValueError("a detectable effect needs two seeds at least")
    if deviation == 0.0:
        return 0.0
    top = deviation
    while power(top, deviation, seeds, alpha) < wanted:
        top *= 2
    return float(optimize.brentq(lambda e: power(e, deviation, seeds, alpha) - wanted, 0.0, top))
