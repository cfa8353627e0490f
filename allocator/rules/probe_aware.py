"""Hit utility that counts the pre-rollouts: E[p(1-p)^(n+l)], n rollouts so far.

Pre-rollouts are part of the group. So the next rollout is worth the probability that it hits while n+l others
miss, under the posterior of their outcomes (the mass-aware marginal of linjiw/curriculum-maxrl, where n is
G0). Often-solved prompts are left sooner than under hit utility.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hora_rl.allocator.posterior import Float, Posterior
from hora_rl.allocator.rules.base import Marginal
from hora_rl.allocator.rules.hit_utility import hit_exact
from hora_rl.allocator.special import log_gamma


def _table(posterior: Posterior, depth: int) -> Float:
    """log B(α+1, β+n+l)/B(α, β)."""
    alpha, beta = posterior.alpha[:, None], posterior.beta[:, None]
    missed = beta + posterior.trials[:, None] + np.arange(depth)
    base = np.log(alpha) + log_gamma(alpha + beta) - log_gamma(beta)
    return base + log_gamma(missed) - log_gamma(missed + alpha + 1)


def _exact(alpha: Fraction, beta: Fraction, successes: int, trials: int, level: int) -> Fraction:
    return hit_exact(alpha, beta, successes, trials, trials + level)


PROBE_AWARE = Marginal("probe_aware", _table, _exact)
