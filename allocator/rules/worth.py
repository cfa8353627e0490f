"""Rules with a worth w(c) of a group's hits: one more rollout gains E[p (w(c+1) - w(c))].

`expected_worth(r)`: w = c/(c + r). The mean score of c hits estimates ∇log p with noise r/c, where r is the
variance of one hit's score over |∇log p|². c/(c + r) is the best weight of such a group and the share of
|∇log p|² that it keeps. r = 0 is `first_hit`. `first_hit(k)`: w = min(c, k), the first k hits. Rollouts that
prompts below k cannot take are divided as by `first_hit`.

The hits X among l further rollouts are Beta-binomial. w is concave and X grows with l, so gains fall.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from hora_rl.allocator.posterior import Float, Posterior
from hora_rl.allocator.rules.base import Marginal, Rule
from hora_rl.allocator.rules.outcomes import FIRST_HIT, HITS_VARIANCE

Step = Callable[[Any], Any]
"""w(c+1) - w(c) of hits c: an array, or one integer as a Fraction."""


@lru_cache(maxsize=64)
def expected_worth(r: float) -> Marginal:
    """The rule with w = c/(c + r). Raises ValueError if r is negative or not finite."""
    if not (np.isfinite(r) and r >= 0):
        raise ValueError(f"rule expected_worth: r must be finite and not negative, not {r}")
    if r == 0:
        return FIRST_HIT
    ratio = Fraction(r)
    return _of_worth(
        f"expected_worth({r:g})",
        lambda c: r / ((c + r) * (c + 1 + r)),
        lambda c: ratio / ((c + ratio) * (c + 1 + ratio)),
    )


@lru_cache(maxsize=64)
def first_hits(k: int, rest: Rule = HITS_VARIANCE) -> Marginal:
    """`first_hit(k)` for an integer k >= 1."""
    if k == 1:
        return FIRST_HIT
    made = _of_worth(f"first_hit({k})", lambda c: (c < k) * 1.0, lambda c: Fraction(c < k))
    return replace(made, useful=lambda sampled: sampled.successes < k, rest=rest)


def _of_worth(name: str, step: Step, exact_step: Step) -> Marginal:
    def table(posterior: Posterior, depth: int) -> Float:
        """By the probability of j hits among l rollouts, updated per rollout (Pólya's urn)."""
        alpha, beta = posterior.alpha[:, None], posterior.beta[:, None]
        j = np.arange(depth)
        steps = step(posterior.successes[:, None] + j)
        chance, gains = np.zeros((len(posterior), depth + 1)), np.empty((len(posterior), depth))
        chance[:, 0] = 1.0
        for level in range(depth):
            now = chance[:, : level + 1]
            hit = now * (alpha + j[: level + 1]) / (alpha + beta + level)
            gains[:, level] = (hit * steps[:, : level + 1]).sum(1)
            now -= hit
            chance[:, 1 : level + 2] += hit
        return np.log(np.maximum(gains, np.finfo(np.float64).tiny))

    def exact(alpha: Fraction, beta: Fraction, successes: int, trials: int, level: int) -> Fraction:
        # C(l, j) · (α)_{j+1} (β)_{l-j} / (α+β)_{l+1}, from j = 0 on.
        term = alpha
        for i in range(level):
            term *= (beta + i) / (alpha + beta + i)
        term /= alpha + beta + level
        total = Fraction(0)
        for j in range(level + 1):
            total += term * exact_step(successes + j)
            if j < level:
                term *= Fraction(level - j, j + 1) * (alpha + 1 + j) / (beta + level - j - 1)
        return total

    return Marginal(name, table, exact)
