"""Rules with a worth w(c) of a group's hits: one more rollout gains E[p (w(c+1) - w(c))].

`expected_worth(r, overlap)`: w = c/(c + r'), r' = r/(1 - overlap). The mean score of c hits estimates ∇log p
with noise r/c, where r is the variance of one hit's score over |∇log p|². c/(c + r) is the best weight of
such a group and the share of |∇log p|² that it keeps. If the gradients of any two of Γ prompts, all of one
length, overlap by ρ, the best weights keep κ²A/(1 + ρA) of |Σ ∇log p|², with κ = 1 - ρ + ρΓ and A = Σ c/((1 -
ρ)c + r). That rises with A, so the worth of a group is c/(c + r'). r = 0 is `first_hit`. `first_hit(k)`: w =
min(c, k), the first k hits. Rollouts that prompts below k cannot take are divided as by `first_hit`.

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
def expected_worth(noise: float, overlap: float = 0.0) -> Marginal:
    """The rule with w = c/(c + r'), of the noise r >= 0 and the overlap ρ in [0, 1). Raises ValueError."""
    if not (np.isfinite(noise) and noise >= 0):
        raise ValueError(f"rule expected_worth: r must be finite and not negative, not {noise}")
    if not 0 <= overlap < 1:
        raise ValueError(f"rule expected_worth: the overlap must be from 0 to below 1, not {overlap}")
    r = noise / (1 - overlap)
    if r == 0:
        return FIRST_HIT
    ratio = Fraction(r)
    return _of_worth(
        f"expected_worth({noise:g}, {overlap:g})" if overlap else f"expected_worth({noise:g})",
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
