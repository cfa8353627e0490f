"""One division of a budget: what was sampled, the prior, the cap, and in which order prompts are served."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hora_rl.allocator.blocks import allocate_shared
from hora_rl.allocator.classes import allocate_classes
from hora_rl.allocator.posterior import Float, Int, posterior
from hora_rl.allocator.rules.base import Division, Marginal, Mask, Rule, Sampled, Split, level_up
from hora_rl.allocator.threshold import allocate_each

Prior = tuple[float, float] | tuple[Float, Float]
FEW = 128  # prompts up to which a table of all is faster than classes
Tier = tuple[Mask, Rule]
"""Some of the prompts (n,), and the rule that divides among them."""


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """n prompts that rollouts can be given to. `prior`: two numbers, or two arrays (n,). `cap` bounds trials
    + Δ.
    """

    sampled: Sampled
    prior: Prior
    cap: int | None

    def __getitem__(self, index: Mask) -> Problem:
        alpha, beta = self.prior
        if isinstance(alpha, float) or isinstance(beta, float):
            return Problem(self.sampled[index], self.prior, self.cap)
        return Problem(self.sampled[index], (alpha[index], beta[index]), self.cap)

    def room(self, budget: int) -> Int:
        """(n,) how many each can take at most."""
        trials = self.sampled.trials
        return np.full(len(trials), budget) if self.cap is None else np.minimum(self.cap - trials, budget)

    def capacity(self, budget: int) -> int:
        """How much of `budget` all prompts together can take."""
        if self.cap is None:
            return budget if len(self.sampled) else 0
        return min(budget, int(self.room(budget).sum()))


def serve(problem: Problem, tiers: Sequence[Tier], budget: int) -> Int:
    """Δ (n,): each tier takes what it can, and what is left goes to the next one's prompts that had no turn
    yet.
    """
    extra, waiting = np.zeros(len(problem.sampled), dtype=np.int64), np.ones(len(problem.sampled), np.bool_)
    for among, rule in tiers:
        turn = among & waiting
        waiting &= ~turn
        part = problem if turn.all() else problem[turn]
        share = part.capacity(budget)
        if share:
            extra[turn] = divide(rule, part, share)
            budget -= share
        if budget == 0:
            break
    return extra


def divide(rule: Rule, problem: Problem, budget: int) -> Int:
    """Δ (n,) of one rule, summing to `budget`, which the prompts must be able to take."""
    if isinstance(rule, Division):
        return rule.divide(problem.sampled, problem.room(budget), budget)
    if isinstance(rule, Split):
        return _by_parts(rule, problem, budget)
    if rule.useful is None or rule.rest is None:
        return _maximise(rule, problem, budget)
    useful = rule.useful(problem.sampled)
    if useful.all():
        return _maximise(rule, problem, budget)
    extra = np.zeros(len(useful), dtype=np.int64)
    first = problem[useful].capacity(budget)
    if first:
        extra[useful] = _maximise(rule, problem[useful], first)
    if budget > first:
        extra[~useful] = divide(rule.rest, problem[~useful], budget - first)
    return extra


def divide_at_least(least: int, rule: Rule, problem: Problem, budget: int) -> Int:
    """The optimum with Δ >= `least` for every prompt; `budget` holds that.

    The optimum takes the gains in one order, so a smaller budget's is part of a larger one's. Raised to
    `least`, the optimum of some budget b sums to `budget`: it is what the gains give beside those that every
    prompt gets anyway.
    """

    def raised(b: int) -> Int:
        return np.maximum(divide(rule, problem, b), least) if b else np.full(len(problem.sampled), least)

    b = bisect_right(range(budget + 1), budget, key=lambda b: int(raised(b).sum())) - 1
    return raised(b)


def _by_parts(rule: Split, problem: Problem, budget: int) -> Int:
    room, left = problem.room(budget), budget
    extra = np.zeros_like(room)
    for among, way, amount in rule.parts(problem.sampled, room, budget):
        if left == 0:
            break
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
    """The exact optimum, by whichever way fits the posteriors."""
    sampled, (alpha, beta), cap = problem.sampled, problem.prior, problem.cap
    if not (isinstance(alpha, float) and isinstance(beta, float)):
        post = posterior(sampled.successes, sampled.trials, np.asarray(alpha), np.asarray(beta))
        return allocate_each(rule, post, budget, problem.room(budget))
    least, most = int(sampled.trials.min()), int(sampled.trials.max())
    if least < most and rule.exact is not None and len(sampled) <= FEW:
        post = posterior(
            sampled.successes, sampled.trials, np.full(len(sampled), alpha), np.full(len(sampled), beta)
        )
        return allocate_each(rule, post, budget, problem.room(budget))
    if least < most:
        return allocate_classes(rule, sampled, (alpha, beta), budget, cap)
    room = None if cap is None else cap - most
    return allocate_shared(rule, sampled.successes, most, (alpha, beta), budget, room)
