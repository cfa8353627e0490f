"""Hit utility that counts the pre-rollouts: E[p(1-p)^(n+l)], n rollouts so far.

Pre-rollouts are part of the group. So the next rollout is worth the probability that it hits while n+l others
miss, under the posterior of their outcomes (the mass-aware marginal of linjiw/curriculum-maxrl, where n is
G0). Often-solved prompts are left sooner than under hit utility.
"""

from __future__ import annotations

from fractions import Fraction

from hora_rl.allocator.posterior import Float, Int, Posterior
from hora_rl.allocator.rules.base import Marginal
from hora_rl.allocator.rules.hit_utility import hit_exact, hit_log_gain


def _log_gain(posterior: Posterior, level: Int) -> Float:
    return hit_log_gain(posterior, posterior.trials + level)


def _exact(alpha: Fraction, beta: Fraction, successes: int, trials: int, level: int) -> Fraction:
    return hit_exact(alpha, beta, successes, trials, trials + level)


PROBE_AWARE = Marginal("probe_aware", _log_gain, _exact)
