"""Arms of a study compared on the same seeds: intervals of differences, Holm's correction, detectable
effects."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats

ALPHA = 0.05
LEAST_P = 1e-15
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean difference over paired seeds with its interval and p-value; NaN where one seed cannot tell.
    `deviation` is the spread over seeds, 0 for one."""

    value: float
    low: float
    high: float
    p: float
    seeds: int
    deviation: float

    @property
    def detectable(self) -> float:
        """What so many seeds see with 80% power, given this spread; NaN for one."""
        return detectable(self.deviation, self.seeds) if self.seeds > 1 else math.nan


def paired_difference(arm: ArrayLike, baseline: ArrayLike, *, alpha: float = ALPHA) -> Difference:
    """`arm` less `baseline`, both (S,) on the same seeds in the same order, or (S, P) on the same problems
    too, with the 1 - alpha interval.

    p is the level at which the interval reaches 0; for (S,) that is the paired t test. Raises ValueError for
    shapes that cannot be paired.
    """
    a, b = np.asarray(arm, dtype=np.float64), np.asarray(baseline, dtype=np.float64)
    if a.shape != b.shape or a.size == 0:
        raise ValueError(f"arms of shapes {a.shape} and {b.shape} cannot be paired by seed")
    d = (a - b).reshape(len(a), -1)
    value = float(d.mean())
    if d.size == 1:
        return Difference(value, math.nan, math.nan, math.nan, 1, 0.0)
    half = float(half_width(d, alpha))
    deviation = float(d.mean(axis=1).std(ddof=1)) if len(d) > 1 else 0.0
    return Difference(value, value - half, value + half, _p_value(d, abs(value)), len(d), deviation)


def half_width(values: Array, alpha: float = ALPHA) -> Array:
    """Half of the 1 - alpha interval of the mean of `values` (S, P, …) over crossed seeds and problems.

        half² = t(S-1)²·V_S + t(P-1)²·max(V_P - V_SP, 0)

    V_S and V_P are the variances of that mean as its S seeds and its P problems show them. What is peculiar
    to a seed on a problem is in both; V_SP, from the residuals, removes it once. Each part has its quantile
    (Banerjee, Sankhyā 22, 1960). One seed leaves the interval over problems, one problem that over seeds.
    """
    seeds, problems = values.shape[:2]
    mean, of_seeds, of_problems = values.mean(axis=(0, 1)), values.mean(axis=1), values.mean(axis=0)
    residuals = values - of_seeds[:, None] - of_problems + mean
    free_s, free_p = max(1, seeds - 1), max(1, problems - 1)  # a single value deviates from its mean by 0
    v_seeds = ((of_seeds - mean) ** 2).sum(axis=0) / (seeds * free_s)
    v_problems = ((of_problems - mean) ** 2).sum(axis=0) / (problems * free_p)
    v_both = (residuals**2).sum(axis=(0, 1)) / (seeds * problems * free_s * free_p)
    t_seeds, t_problems = stats.t.isf(alpha / 2, [free_s, free_p])
    return np.sqrt(t_seeds**2 * v_seeds + t_problems**2 * np.maximum(v_problems - v_both, 0))


def _p_value(d: Array, size: float) -> float:
    if size == 0.0:
        return 1.0
    if half_width(d, LEAST_P) <= size:
        return 0.0
    log_p = optimize.brentq(lambda x: float(half_width(d, math.exp(x))) - size, math.log(LEAST_P), 0.0)
    return math.exp(log_p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: adjusted p-values that hold the family's error; NaN stays out of the
    family."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)  # NaN last
    factors = np.arange(np.isfinite(p).sum(), np.isfinite(p).sum() - len(p), -1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, factors * p[order]))
    return adjusted.tolist()


def area(steps: ArrayLike, values: ArrayLike) -> Array:
    """Mean height of curves (T, …) over their steps (T,): the area under them (trapezoids) over the range."""
    x, y = np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)
    return np.asarray(np.trapezoid(y, x, axis=0) / (x[-1] - x[0]))


def at_matched(level: float, matched: ArrayLike, values: ArrayLike) -> float:
    """`values` where the curve `matched` first reaches `level`, by linear interpolation; NaN where it never
    does."""
    x, y = np.asarray(matched, dtype=np.float64), np.asarray(values, dtype=np.float64)
    reached = np.flatnonzero(x >= level)
    if reached.size == 0:
        return math.nan
    i = int(reached[0])
    return float(y[0] if i == 0 else np.interp(level, x[i - 1 : i + 1], y[i - 1 : i + 1]))


def power(effect: float, deviation: float, seeds: int) -> float:
    """Probability that a two-sided paired t test at 5% sees `effect`, where paired differences have this
    deviation."""
    df, shift = seeds - 1, effect / deviation * math.sqrt(seeds)
    bound = float(stats.t.isf(ALPHA / 2, df))
    # Far from 0 scipy gives NaN for the other tail, which is below 1e-15 there.
    return float(stats.nct.sf(bound, df, shift) + np.nan_to_num(stats.nct.cdf(-bound, df, shift)))


def detectable(deviation: float, seeds: int, wanted: float = 0.8) -> float:
    """The least effect that is seen with probability `wanted`; see `power`."""
    if deviation == 0.0:
        return 0.0
    top = deviation
    while power(top, deviation, seeds) < wanted:
        top *= 2
    return float(optimize.brentq(lambda e: power(e, deviation, seeds) - wanted, 0.0, top))
