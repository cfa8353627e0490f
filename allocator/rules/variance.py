"""VIP's rule (Nguyen et al., arXiv 2602.01601): the reduction of gradient variance per rollout.

Up to a shared factor, a group of n has variance p(1-p)/(n-1) under RLOO and p(1-p)(n-1)/n² under Dr. GRPO. So
the gains are p(1-p)/(n(n-1)) and p(1-p)(n²-n-1)/(n²(n+1)²), n the size so far. The second rises from n=2 to
n=3 and falls afterwards, so it needs three pre-rollouts.

VIP predicts p before sampling and has no Phase A. `variance` uses the posterior mean, `variance(prior)` the
prior's mean: with `prior: gp` this is VIP's prediction.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import numpy as np

from hora_rl.allocator.posterior import Float, Posterior
from hora_rl.allocator.rules.base import Marginal

OPTIONS = {"dr_grpo", "prior"}


@lru_cache(maxsize=8)
def variance(options: frozenset[str] = frozenset()) -> Marginal:
    """`variance` with some of the options `dr_grpo` and `prior`. Raises ValueError for another one."""
    if not options <= OPTIONS:
        raise ValueError(f"options are {' and '.join(sorted(OPTIONS))}, with a comma")
    of_dr_grpo, of_prior = "dr_grpo" in options, "prior" in options

    def table(posterior: Posterior, depth: int) -> Float:
        right, wrong = posterior.alpha, posterior.beta
        if of_prior:
            right = right - posterior.successes
            wrong = wrong - (posterior.trials - posterior.successes)
        spread = (np.log(right) + np.log(wrong) - 2 * np.log(right + wrong))[:, None]
        n = posterior.trials[:, None] + np.arange(depth, dtype=np.float64)
        if of_dr_grpo:
            return np.asarray(spread + np.log(n * n - n - 1) - 2 * np.log(n) - 2 * np.log(n + 1))
        return np.asarray(spread - np.log(n) - np.log(n - 1))

    def exact(alpha: Fraction, beta: Fraction, successes: int, trials: int, level: int) -> Fraction:
        if of_prior:
            alpha, beta = alpha - successes, beta - (trials - successes)
        n = trials + level
        falls = Fraction(n * n - n - 1, (n * (n + 1)) ** 2) if of_dr_grpo else Fraction(1, n * (n - 1))
        return alpha * beta / (alpha + beta) ** 2 * falls

    name = f"variance({','.join(sorted(options))})" if options else "variance"
    # A group of one has no leave-one-out baseline: its first gain is not finite.
    return Marginal(name, table, exact, least_trials=3 if of_dr_grpo else 2)


VARIANCE = variance()
