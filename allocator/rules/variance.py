"""VIP's rule (Nguyen et al., arXiv 2602.01601) for RLOO: how much one more rollout lowers the gradient's variance.

The variance of a group of n is p(1-p)/(n-1) up to a common factor, hence the gain p̂(1-p̂)/(n(n-1)), n the size so
far and p̂ the posterior mean. VIP's Dr.GRPO form, p(1-p)(n-1)/n², is not concave: its gain rises from n=2 to n=3,
so no greedy order is optimal for it and it is not offered.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from allocator.posterior import Float, Int, Posterior
from allocator.rules.base import Marginal


def _log_gain(posterior: Posterior, level: Int) -> Float:
    size = (posterior.trials + level).astype(np.float64)
    spread = np.log(posterior.alpha) + np.log(posterior.beta) - 2 * np.log(posterior.alpha + posterior.beta)
    return spread - np.log(size) - np.log(size - 1)


def _exact(alpha: Fraction, beta: Fraction, successes: int, trials: int, level: int) -> Fraction:
    size = trials + level
    return alpha * beta / ((alpha + beta) ** 2 * size * (size - 1))


# A group of one has no leave-one-out baseline: its variance, and with it the first gain, is not finite.
VARIANCE = Marginal("variance", _log_gain, _exact, least_trials=2)
