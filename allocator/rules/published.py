"""Even divisions, and the rules of other papers that HORA is compared with.

Reinforce-Ada (Xiong et al., arXiv 2510.04996) and AR3PO (Zhang et al., arXiv 2509.25808): every round samples
the same number for each active prompt. A prompt exits at its first success (AR3PO, and Reinforce-Ada's
positive-focused form), or with k successes and k failures (its balanced form, k half of the trained group).
The papers fix the number per round and spend less when prompts exit. Here a round's budget is divided evenly
over active prompts, or over all if none is active, so that Γ·G holds. Later steps of both papers (reuse of
old responses, downsampling) are not allocation and not included.

Knapsack RL (Li et al., arXiv 2509.25849, and its code): the value of N rollouts of a prompt with rate p = c/n
is (1 - pᴺ - (1-p)ᴺ) · p(1-p)²: the probability of a mixed group times its learning value. The minimum is the
samples so far. Prompts with c = 0 or c = n have no value. They get the budget beyond the estimated need of
mixed prompts, Σ log(1-0.9)/log(max(p, 1-p)): those with c = 0 first, else those with c = n. The paper uses
the previous epoch's rates; here they come from this batch's rollouts so far.

VIP (Nguyen et al., arXiv 2602.01601): the reduction of gradient variance per rollout. Up to a shared factor,
a group of n has variance p(1-p)/(n-1) under RLOO and p(1-p)(n-1)/n² under Dr. GRPO. So the gains are
p(1-p)/(n(n-1)) and p(1-p)(n²-n-1)/(n²(n+1)²), n the size so far. The second rises from n=2 to n=3 and falls
afterwards, so it needs three pre-rollouts. VIP predicts p before sampling and has no Phase A. `variance` uses
the posterior mean, `variance(prior)` the prior's mean: with `prior: gp` this is VIP's prediction.
"""

from fractions import Fraction

import numpy as np

from hora_rl.allocator.posterior import Float, Int, Posterior
from hora_rl.allocator.rules.base import Division, Marginal, Mask, Part, Sampled, Split, level_up

EVEN_SIZES = Division(
    "even_sizes", lambda sampled, room, budget: level_up(sampled.trials, sampled.successes, room, budget)
)
"""The smallest groups first, Phase A included: the default for rollouts without a gain."""
CONFIDENCE = 0.9
OPTIONS = {"dr_grpo", "prior"}


def _uniform(sampled: Sampled, room: Int, budget: int) -> Int:
    return level_up(sampled.extra, sampled.successes, room, budget)


UNIFORM = Division("uniform", _uniform, needs_counts=False)
"""GRPO: every prompt gets the same number of rollouts."""


def left(sampled: Sampled, k: int | None) -> Mask:
    """(n,) active prompts: without a success, or with fewer than k of either outcome."""
    if k is None:
        return sampled.successes == 0
    return np.minimum(sampled.successes, sampled.trials - sampled.successes) < k


def reinforce_ada(k: int | None = None, name: str = "reinforce_ada") -> Division:
    """Sample until the first success, or until k successes and k failures."""

    def divide(sampled: Sampled, room: Int, budget: int) -> Int:
        among = left(sampled, k)  # evenly; what they have no room for goes evenly to the rest
        extra, first = np.zeros_like(room), min(budget, int(room[among].sum()))
        extra[among] = _uniform(sampled[among], room[among], first)
        extra[~among] = _uniform(sampled[~among], room[~among], budget - first)
        return extra

    return Division(name if k is None else f"{name}({k})", divide)


REINFORCE_ADA = reinforce_ada()
AR3PO = reinforce_ada(name="ar3po")
HARD_FIRST = reinforce_ada(name="hard_first")
"""The paper's ablation: all rollouts to prompts without a success, evenly; to all if there is none."""


def _knapsack_table(posterior: Posterior, depth: int) -> Float:
    rate = (posterior.successes / posterior.trials)[:, None]
    right, wrong = np.log(rate), np.log1p(-rate)
    size = posterior.trials[:, None] + np.arange(depth)
    return np.asarray(right + 2 * wrong + np.logaddexp(size * right + wrong, size * wrong + right))


def _knapsack_exact(alpha: Fraction, beta: Fraction, successes: int, trials: int, level: int) -> Fraction:
    right = Fraction(successes, trials)
    wrong = 1 - right
    size = trials + level
    return right * wrong**2 * (right**size * wrong + wrong**size * right)


VALUE = Marginal("knapsack_value", _knapsack_table, _knapsack_exact)


def needed(sampled: Sampled, room: Int) -> int:
    """Rollouts needed to see both outcomes with probability 0.9, rounded down and capped."""
    rate = sampled.successes / sampled.trials
    cost = np.log(1 - CONFIDENCE) / np.log(np.maximum(rate, 1 - rate))
    return int(np.floor(np.minimum(cost, sampled.trials + room)).sum())


def _knapsack_parts(sampled: Sampled, room: Int, budget: int) -> list[Part]:
    unsolved, solved = sampled.successes == 0, sampled.successes == sampled.trials
    mixed = ~(unsolved | solved)
    without = unsolved if unsolved.any() else solved
    if not mixed.any():
        return [(without, UNIFORM, budget)]
    spare = max(0, budget - needed(sampled[mixed], room[mixed])) if without.any() else 0
    return [(without, UNIFORM, spare), (mixed, VALUE, budget - spare)]


KNAPSACK = Split("knapsack", _knapsack_parts, least_trials=1)


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
