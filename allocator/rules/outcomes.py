"""Rules that stop at an outcome: the gain is the probability of a prompt's first outcome of a kind.

`first_hit`: the first success, E[p(1-p)^l] while c = 0, then 0. Under a maximum-likelihood objective
Σ_i P(c_i >= 1) is the realised share of the likelihood's gradient, and this is its marginal gain.
`mixed`: the group becomes mixed, so that a group-relative advantage is not zero. E[p(1-p)^l] for an all-wrong
group, E[(1-p)p^l] for an all-right one, 0 for a mixed one. `hit_or_miss`: as `mixed`, with a first success
worth `weight` first failures.

In rounds these rules sample until the outcome. `rest` divides rollouts that no prompt gains from.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

import numpy as np

from hora_rl.allocator.posterior import Float, Int, Posterior
from hora_rl.allocator.rules.base import Marginal, Mask, Rule, Sampled
from hora_rl.allocator.rules.hit_utility import HIT_UTILITY, hit_exact, hit_log_gain, hit_table
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


def _mirrored(posterior: Posterior) -> Posterior:
    """Swap failures and successes: the gain of a first failure is hit utility's."""
    return Posterior(posterior.beta, posterior.alpha, posterior.successes, posterior.trials)


def _miss_log_gain(posterior: Posterior, level: Int) -> Float:
    return hit_log_gain(_mirrored(posterior), level)


def _miss_table(posterior: Posterior, depth: int) -> Float:
    return hit_table(_mirrored(posterior), depth)


def _miss_exact(alpha: Fraction, beta: Fraction, successes: int, trials: int, level: int) -> Fraction:
    return hit_exact(beta, alpha, trials - successes, trials, level)


# The gain of a first failure, E[(1-p)p^l].
FIRST_MISS = Marginal("first_miss", _miss_log_gain, _miss_exact, _miss_table)


def _variance_log_gain(posterior: Posterior, level: Int) -> Float:
    mean = posterior.mean
    hits = posterior.successes + level * mean
    return np.log(mean) - np.log(hits) - np.log(hits + 1)


def _variance_exact(alpha: Fraction, beta: Fraction, successes: int, trials: int, level: int) -> Fraction:
    mean = alpha / (alpha + beta)
    hits = successes + level * mean
    return mean / (hits * (hits + 1))


# The mean over c hits has variance σ²/c. One more hit lowers it by 1/(c(c+1)) and has probability p̂. After l
# more rollouts, c is replaced by its expectation c + l·p̂.
HITS_VARIANCE = Marginal("hits_variance", _variance_log_gain, _variance_exact)


def first_hit(rest: Rule = HITS_VARIANCE) -> Marginal:
    """`first_hit` with `rest` for prompts that have a success."""
    name = "first_hit" if rest is HITS_VARIANCE else f"first_hit({rest.name})"
    return replace(HIT_UTILITY, name=name, useful=no_success, rest=rest)


@lru_cache(maxsize=64)
def hit_or_miss(weight: float = 2.0) -> Marginal:
    """`hit_or_miss` with a first success worth `weight` first failures.

    Raises ValueError unless `weight` is positive and finite.
    """
    if not (np.isfinite(weight) and weight > 0):
        raise ValueError(f"rule hit_or_miss: the weight of a hit must be positive and finite, not {weight}")
    name = "mixed" if weight == 1 else "hit_or_miss" if weight == 2 else f"hit_or_miss({weight:g})"
    bonus, ratio = float(np.log(weight)), Fraction(weight)

    def turned(posterior: Posterior) -> tuple[Posterior, Float]:
        """Posterior of the missing outcome and its log weight."""
        wrong = posterior.successes == 0
        alpha = np.where(wrong, posterior.alpha, posterior.beta)
        beta = np.where(wrong, posterior.beta, posterior.alpha)
        return Posterior(alpha, beta, posterior.successes, posterior.trials), np.where(wrong, bonus, 0.0)

    def log_gain(posterior: Posterior, level: Int) -> Float:
        other, log_weight = turned(posterior)
        return hit_log_gain(other, level) + log_weight

    def table(posterior: Posterior, depth: int) -> Float:
        other, log_weight = turned(posterior)
        return hit_table(other, depth) + log_weight[:, None]

    def exact(alpha: Fraction, beta: Fraction, successes: int, trials: int, level: int) -> Fraction:
        if successes:
            return hit_exact(beta, alpha, 0, trials, level)
        return ratio * hit_exact(alpha, beta, 0, trials, level)

    # An empty group becomes mixed at its second rollout, so its gain would rise first: it needs one trial.
    return Marginal(name, log_gain, exact, table, 1, one_kind, EVEN_SIZES)


FIRST_HIT = first_hit()
MIXED = hit_or_miss(1.0)
HIT_OR_MISS = hit_or_miss(2.0)
