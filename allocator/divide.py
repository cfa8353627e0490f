"""`allocate`, and how a rule divides a budget among some of the prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hora_rl.allocator.checks import check_budget, check_counts, check_prior, check_trials
from hora_rl.allocator.posterior import BetaPrior, Int, posterior
from hora_rl.allocator.rules import get_rule
from hora_rl.allocator.rules.base import Division, Gain, Marginal, Mask, Rule, Sampled, Split, level_up
from hora_rl.allocator.solver import solve_classes

Tier = tuple[Mask, Rule]
"""Some of the prompts (n,), and the rule that divides among them."""


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
    c = check_counts(successes)
    g0 = check_trials(trials, c)
    check_budget(budget, c, g0, max_group_size)
    chosen = get_rule(rule)
    alpha_beta = check_prior(prior, len(c))
    if budget == 0:
        return np.zeros(len(c), dtype=np.int64)
    check_least_trials(chosen, g0)
    sampled = Sampled(c, np.broadcast_to(g0, c.shape), np.broadcast_to(np.int64(0), c.shape))
    return divide(chosen, Problem(sampled, alpha_beta, max_group_size), int(budget))


def check_least_trials(rule: Rule, trials: Int) -> None:
    """Raise ValueError if a prompt has fewer pre-rollouts than the rule needs."""
    if not isinstance(rule, Division) and int(np.min(trials)) < rule.least_trials:
        raise ValueError(
            f"trials: rule {rule.name} is defined from {rule.least_trials} pre-rollouts on, "
            f"not {int(np.min(trials))}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """n prompts to give rollouts to. `prior`: two numbers, or two arrays (n,). `cap` bounds trials + Δ."""

    sampled: Sampled
    prior: BetaPrior
    cap: int | None

    def __getitem__(self, index: Mask | Int) -> Problem:
        alpha, beta = self.prior
        if not (isinstance(alpha, float) or isinstance(beta, float)):
            alpha, beta = alpha[index], beta[index]
        return Problem(self.sampled[index], (alpha, beta), self.cap)  # type: ignore[arg-type]

    def room(self, budget: int) -> Int:
        """(n,) how many of `budget` each prompt can take."""
        trials = self.sampled.trials
        return np.full(len(trials), budget) if self.cap is None else np.minimum(self.cap - trials, budget)


def serve(problem: Problem, tiers: Sequence[Tier], budget: int) -> Int:
    """Δ (n,) by tiers in order. What a tier cannot take goes to the next; a prompt is served once."""
    extra, waiting = np.zeros(len(problem.sampled), dtype=np.int64), np.ones(len(problem.sampled), np.bool_)
    for among, rule in tiers:
        turn = among & waiting
        waiting &= ~turn
        part = problem if turn.all() else problem[turn]
        share = min(budget, int(part.room(budget).sum()))
        if share:
            extra[turn] = divide(rule, part, share)
            budget -= share
    return extra


def divide(rule: Rule, problem: Problem, budget: int) -> Int:
    """Δ (n,) of one rule, summing to `budget`. The prompts must have room for it."""
    if isinstance(rule, Division):
        return rule.divide(problem.sampled, problem.room(budget), budget)
    if isinstance(rule, Split):
        return _by_parts(rule, problem, budget)
    if rule.useful is None or rule.rest is None:
        return _maximise(rule, problem, budget)
    everyone = np.ones(len(problem.sampled), dtype=np.bool_)
    gains = replace(rule, useful=None, rest=None)
    return serve(problem, [(rule.useful(problem.sampled), gains), (everyone, rule.rest)], budget)


def _by_parts(rule: Split, problem: Problem, budget: int) -> Int:
    room, left = problem.room(budget), budget
    extra = np.zeros_like(room)
    for among, way, amount in rule.parts(problem.sampled, room, budget):
        share = min(amount, left, int((room - extra)[among].sum()))
        if share == 0:
            continue
        if isinstance(way, Division):
            extra[among] += way.divide(problem.sampled[among], (room - extra)[among], share)
        else:
            extra[among] = divide(way, problem[among], share)
        left -= share
    if left:
        extra += level_up(problem.sampled.trials + extra, problem.sampled.successes, room - extra, left)
    return extra


def _maximise(rule: Marginal, problem: Problem, budget: int) -> Int:
    """The exact optimum."""
    sampled, (alpha, beta) = problem.sampled, problem.prior
    of = np.arange(len(sampled))
    if isinstance(alpha, float) and isinstance(beta, float):
        keys = sampled.successes * (int(sampled.trials.max()) + 1) + sampled.trials
        _, index, of = np.unique(keys, return_index=True, return_inverse=True)
        problem = problem[index]
    sampled, ones = problem.sampled, np.ones(len(problem.sampled))
    post = posterior(sampled.successes, sampled.trials, alpha * ones, beta * ones)
    return solve_classes(rule, post, problem.room(budget), of, budget)
