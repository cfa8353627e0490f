"""Knapsack RL (Li et al., arXiv 2509.25849, and its code): empirical rates, a minimum, and a fallback.

The value of N rollouts of a prompt with rate p = c/n is (1 - pᴺ - (1-p)ᴺ) · p(1-p)²: the probability of a
mixed group times its learning value. The minimum is the samples so far. Prompts with c = 0 or c = n have no
value. They get the budget beyond the estimated need of mixed prompts, Σ log(1-0.9)/log(max(p, 1-p)): those
with c = 0 first, else those with c = n. The paper uses the previous epoch's rates; here they come from this
batch's rollouts so far.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hora_rl.allocator.posterior import Float, Int, Posterior
from hora_rl.allocator.rules.base import Marginal, Part, Sampled, Split
from hora_rl.allocator.rules.uniform import UNIFORM

CONFIDENCE = 0.9


def _table(posterior: Posterior, depth: int) -> Float:
    rate = (posterior.successes / posterior.trials)[:, None]
    right, wrong = np.log(rate), np.log1p(-rate)
    size = posterior.trials[:, None] + np.arange(depth)
    return np.asarray(right + 2 * wrong + np.logaddexp(size * right + wrong, size * wrong + right))


def _exact(alpha: Fraction, beta: Fraction, successes: int, trials: int, level: int) -> Fraction:
    right = Fraction(successes, trials)
    wrong = 1 - right
    size = trials + level
    return right * wrong**2 * (right**size * wrong + wrong**size * right)


VALUE = Marginal("knapsack_value", _table, _exact)


def needed(sampled: Sampled, room: Int) -> int:
    """Rollouts needed to see both outcomes with probability 0.9, rounded down and capped."""
    rate = sampled.successes / sampled.trials
    cost = np.log(1 - CONFIDENCE) / np.log(np.maximum(rate, 1 - rate))
    return int(np.floor(np.minimum(cost, sampled.trials + room)).sum())


def _parts(sampled: Sampled, room: Int, budget: int) -> list[Part]:
    unsolved, solved = sampled.successes == 0, sampled.successes == sampled.trials
    mixed = ~(unsolved | solved)
    without = unsolved if unsolved.any() else solved
    if not mixed.any():
        return [(without, UNIFORM, budget)]
    spare = max(0, budget - needed(sampled[mixed], room[mixed])) if without.any() else 0
    return [(without, UNIFORM, spare), (mixed, VALUE, budget - spare)]


KNAPSACK = Split("knapsack", _parts, least_trials=1)
