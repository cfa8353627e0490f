"""HORA's rule: the expected probability of a hit, 1 - (1-p)^Δ, under the posterior.

Its marginal gain is E[p(1-p)^l] = B(α+1, β+l)/B(α, β): one more rollout after l misses (paper, section 3.2).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hora_rl.allocator.posterior import Float, Posterior
from hora_rl.allocator.rules.base import Marginal


def hit_table(posterior: Posterior, depth: int) -> Float:
    """(n, depth) by the paper's recurrence M(0) = α/(α+β), M(l+1) = M(l)(β+l)/(α+β+l+1), in logarithms."""
    alpha, beta = posterior.alpha[:, None], posterior.beta[:, None]
    missed = beta + np.arange(depth - 1)
    steps = np.empty((len(posterior), depth))
    steps[:, :1] = alpha / (alpha + beta)
    np.divide(missed, missed + (alpha + 1), out=steps[:, 1:])
    return np.cumsum(np.log(steps, out=steps), axis=1, out=steps)


def hit_exact(alpha: Fraction, beta: Fraction, successes: int, trials: int, level: int) -> Fraction:
    """E[p(1-p)^level] as a Fraction."""
    if alpha.denominator == 1 and alpha < level:
        # For a whole α all but α+1 factors cancel: α · Π_{j<α}(β+j) / Π_{j<=α}(β+l+j).
        return _product(alpha, beta, int(alpha)) / _product(Fraction(1), beta + level, int(alpha) + 1)
    rising = _product(Fraction(1), beta, level)
    return alpha * rising / _product(Fraction(1), alpha + beta, level + 1)


def _product(start: Fraction, first: Fraction, count: int) -> Fraction:
    """start · first · (first+1) · … with `count` factors, in integers: Fractions reduce at every step."""
    numerator, step = 1, first.denominator
    for j in range(count):
        numerator *= first.numerator + j * step
    return start * Fraction(numerator, step**count)


HIT_UTILITY = Marginal("hit_utility", hit_table, hit_exact)
