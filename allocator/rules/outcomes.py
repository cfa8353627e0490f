"""Rules that stop at an outcome: the gain is the probability of a prompt's first outcome of a kind.

`first_hit`: the first success, E[p(1-p)^l] while c = 0, then 0. Under a maximum-likelihood objective
Σ_i P(c_i >= 1) is the realised share of the likelihood's gradient, and this is its marginal gain.
`mixed`: the group becomes mixed, so that a group-relative advantage is not zero. E[p(1-p)^l] for an all-wrong
group, E[(1-p)p^l] for an all-right one, 0 for a mixed one. `hit_or_miss`: as `mixed`, with a first success
worth `weight` first failures.

In rounds these rules sample until the outcome. `rest` divides rollouts that no prompt gains from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from hora_rl.allocator.posterior import Float, Posterior
from hora_rl.allocator.rules.base import Division, Marginal, Mask, Rule, Sampled
from hora_rl.allocator.rules.hit_utility import HIT_UTILITY, hit_exact, hit_table
from hora_rl.allocator.rules.uniform import EVEN_SIZES


def no_success(sampled: Sampled) -> Mask:
    """(n,) prompts without a success, including those without rollouts."""
    return sampled.successes == 0


def no_failure(sampled: Sampled) -> Mask:
    """(n,) prompts with rollouts and no failure."""
    return (sampled.successes == sampled.trials) & (sampled.trials > 0)


def one_kind(sampled: Sampled) -> Mask:
    """(n,) prompts without mixed outcomes."""
    return no_success(sampled) | no_failure(sampled)


def _variance_table(posterior: Posterior, depth: int) -> Float:
    mean = posterior.mean[:, None]
    hits = posterior.successes[:, None] + np.arange(depth) * mean
    return np.log(mean) - np.log(hits) - np.log(hits + 1)


def _variance_exact(alpha: Fraction, beta: Fraction, successes: int, trials: int, level: int) -> Fraction:
    mean = alpha / (alpha + beta)
    hits = successes + level * mean
    return mean / (hits * (hits + 1))


# The mean over c hits has variance σ²/c. One more hit lowers it by 1/(c(c+1)) and has probability p̂. After l
# more rollouts, c is replaced by its expectation c + l·p̂.
HITS_VARIANCE = Marginal("hits_variance", _variance_table, _variance_exact)


def first_hit(rest: Rule = HITS_VARIANCE) -> Marginal:
    """`first_hit` with `rest` for prompts that have a success."""
    name = "first_hit" if rest is HITS_VARIANCE else f"first_hit({rest.name})"
    least = 0 if isinstance(rest, Division) else rest.least_trials
    return replace(HIT_UTILITY, name=name, useful=no_success, rest=rest, least_trials=least)


@lru_cache(maxsize=64)
def hit_or_miss(weight: float = 2.0) -> Marginal:
    """`hit_or_miss` with a first success worth `weight` first failures.

    Raises ValueError unless `weight` is positive and finite.
    """
    if not (np.isfinite(weight) and weight > 0):
        raise ValueError(f"rule hit_or_miss: the weight of a hit must be positive and finite, not {weight}")
    name = "mixed" if weight == 1 else "hit_or_miss" if weight == 2 else f"hit_or_miss({weight:g})"
    # An empty group becomes mixed at its second rollout, so its gain would rise first: it needs one trial.
    made = _first_outcome(name, weight, lambda successes: successes == 0)
    return replace(made, least_trials=1, useful=one_kind, rest=EVEN_SIZES)


def _first_outcome(name: str, weight: float, misses_hit: Callable[[Any], Any]) -> Marginal:
    """The gain of a first success, times `weight`, where `misses_hit(successes)`; else of a first failure."""
    bonus, ratio = float(np.log(weight)), Fraction(weight)

    def table(posterior: Posterior, depth: int) -> Float:
        wrong = misses_hit(posterior.successes)
        alpha = np.where(wrong, posterior.alpha, posterior.beta)
        beta = np.where(wrong, posterior.beta, posterior.alpha)
        gains = hit_table(Posterior(alpha, beta, posterior.successes, posterior.trials), depth)
        return gains + np.where(wrong, bonus, 0.0)[:, None]

    def exact(alpha: Fraction, beta: Fraction, successes: int, trials: int, level: int) -> Fraction:
        if misses_hit(successes):
            return ratio * hit_exact(alpha, beta, successes, trials, level)
        return hit_exact(beta, alpha, successes, trials, level)

    return Marginal(name, table, exact)


FIRST_HIT = first_hit()
MIXED = hit_or_miss(1.0)
HIT_OR_MISS = hit_or_miss(2.0)
FIRST_MISS = _first_outcome("first_miss", 1.0, lambda successes: successes < 0)
"""The gain of a first failure, E[(1-p)p^l]."""
