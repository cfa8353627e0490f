"""Knapsack RL's rule (Li et al., arXiv 2509.25849): the gain in the chance of a group that is not all right or wrong.

v(p̂) · [p̂ⁿ(1-p̂) + (1-p̂)ⁿ p̂] with value v(p) = p(1-p)², n the group's size so far, p̂ the posterior mean.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from allocator.posterior import Float, Int, Posterior
from allocator.rules.base import Marginal


def _log_gain(posterior: Posterior, level: Int) -> Float:
    total = np.log(posterior.alpha + posterior.beta)
    right, wrong = np.log(posterior.alpha) - total, np.log(posterior.beta) - total
    size = posterior.trials + level
    return right + 2 * wrong + np.logaddexp(size * right + wrong, size * wrong + right)


def _exact(alpha: Fraction, beta: Fraction, successes: int, trials: int, level: int) -> Fraction:
    right = alpha / (alpha + beta)
    wrong = 1 - right
    size = trials + level
    return right * wrong**2 * (right**size * wrong + wrong**size * right)


# For a group of none the chance is still zero after one rollout, and the gain would rise before it falls.
KNAPSACK = Marginal("knapsack", _log_gain, _exact, least_trials=1)
