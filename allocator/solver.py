"""The one exact solver: give a budget of rollouts where the marginal gain is highest (paper, proposition 1).

    maximise Σ_i U_i(Δ_i)   subject to   Σ_i Δ_i = budget,  0 <= Δ_i <= room_i

Every U_i is concave, so the optimum is the `budget` highest marginal gains. No loop over rollouts: with a
shared prior and equal trials the order of gains is known beforehand (`blocks`), with trials that differ
prompts are divided by classes (`classes`), and with a prior per prompt a threshold on the gain is searched
(`threshold`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hora_rl.allocator.arguments import check_budget, check_counts, check_prior, check_trials
from hora_rl.allocator.problem import Problem, divide
from hora_rl.allocator.rules import get_rule
from hora_rl.allocator.rules.base import Division, Gain, Rule, Sampled


def allocate(
    successes: ArrayLike,
    trials: ArrayLike,
    budget: int,
    prior: tuple[ArrayLike, ArrayLike] = (1.0, 1.0),
    rule: str | Rule | Gain = "hit_utility",
    max_group_size: int | None = None,
) -> NDArray[np.int64]:
    """Divide `budget` extra rollouts over n prompts: Δ (n,) int64, summing to `budget` exactly.

    successes: (n,) correct pre-rollouts c_i, 0..trials. trials: G0, an int or (n,). prior: (α0, β0), numbers
    or (n,) arrays, positive and finite. rule: a name, `package.module:function`, or such a function (see
    `allocator.rules`). max_group_size: cap on G_i = trials + Δ_i. Ties go to the prompt with fewer successes,
    then to the lower index.

    >>> allocate(successes=[0, 3, 8], trials=8, budget=72)
    array([53, 15,  4])
    >>> allocate(successes=[0, 3, 8], trials=8, budget=72, rule="mixed")
    array([36,  0, 36])

    Raises ValueError naming the argument and the first offending index.
    """
    c = check_counts("successes", successes)
    g0 = check_trials("trials", trials, c)
    check_budget(budget, c, g0, max_group_size)
    chosen = get_rule(rule)
    alpha_beta = check_prior(prior, len(c))
    if budget == 0:
        return np.zeros(len(c), dtype=np.int64)
    check_least_trials(chosen, g0)
    sampled = Sampled(c, np.broadcast_to(g0, c.shape), np.broadcast_to(np.int64(0), c.shape))
    return divide(chosen, Problem(sampled, alpha_beta, max_group_size), int(budget))


def check_least_trials(rule: Rule, trials: NDArray[np.int64]) -> None:
    """Raise ValueError for a prompt with fewer pre-rollouts than the rule is defined from."""
    if not isinstance(rule, Division) and int(np.min(trials)) < rule.least_trials:
        raise ValueError(
            f"trials: rule {rule.name} is defined from {rule.least_trials} pre-rollouts on, "
            f"not {int(np.min(trials))}"
        )
