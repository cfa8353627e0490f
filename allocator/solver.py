"""`allocate`, and the exact solver: a budget goes where the marginal gain is highest (paper, proposition 1).

    maximise Σ_i U_i(Δ_i)   subject to   Σ_i Δ_i = budget,  0 <= Δ_i <= room_i

Every U_i is concave, so the optimum is the set of the `budget` highest marginal gains. No loop runs over
rollouts. Equal gains go to the prompt with fewer successes, then to the lower index. Log gains in float64
decide, except those within `NEAR` of each other: these are compared as fractions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hora_rl.allocator.posterior import (
    BetaPrior,
    Float,
    Int,
    Posterior,
    check_budget,
    check_counts,
    check_prior,
    check_trials,
    posterior,
)
from hora_rl.allocator.rules import get_rule
from hora_rl.allocator.rules.base import Division, Gain, Marginal, Mask, Rule, Sampled, Split, level_up

NEAR = 1e-9
"""Log gains are sums of logarithms, of size up to 1e2. Their error stays below this."""
FIRST_TABLE = 512
"""About how many entries the first table of `solve_classes` has."""
BINS = 1024
Tier = tuple[Mask, Rule]
"""Some of the prompts (n,), and the rule that divides among them."""


class Entries(NamedTuple):
    """Log gains of (class, level) pairs, all (E,)."""

    gains: Float
    classes: Int
    levels: Int

    def where(self, mask: Mask) -> Entries:
        return Entries(self.gains[mask], self.classes[mask], self.levels[mask])


def solve_classes(rule: Marginal, post: Posterior, room: Int, of: Int, budget: int) -> Int:
    """Δ (n,) for K classes of equal prompts. `post` (K,) and `room` (K,): posterior and bound of each Δ_i of
    a class. `of` (n,): the class of each prompt. The room of all prompts must hold the budget."""
    members = np.bincount(of, minlength=len(post))
    entries, cut = _tabulate(rule, post, room, members, budget)
    is_near = entries.gains <= cut + NEAR
    extra: Int = np.bincount(entries.classes[~is_near], minlength=len(post))[of]
    near = entries.where(is_near)
    prompts = _prompts_in_order(near, _ranks(rule, post, near), of, members)
    np.add.at(extra, prompts[: budget - int(extra.sum())], 1)
    return extra


def _tabulate(rule: Marginal, post: Posterior, room: Int, members: Int, budget: int) -> tuple[Entries, float]:
    """Every entry that the optimum may take, and the lowest gain that it takes. A class gets more levels
    while its last gain reaches the cut of the entries so far, which only rises."""
    classes, first, depth = np.flatnonzero(room), 0, max(8, FIRST_TABLE // len(post))
    entries = Entries(np.empty(0), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    cut = -float(np.finfo(np.float64).max)
    while classes.size:
        room_here = room[classes]
        depth = min(depth, int(room_here.max()))
        table = rule.table(post[classes], depth)
        _refuse_rising(rule, table)
        gains = table[:, first:]
        weights = np.broadcast_to(members[classes][:, None], gains.shape)
        if int(room_here.min()) < depth:
            inside = np.arange(first, depth) < room_here[:, None]
            gains, weights = np.where(inside, gains, -np.inf), weights * inside
        weights = np.concatenate([members[entries.classes], weights.ravel()])
        if int(weights.sum()) >= budget:
            cut = _cut(np.concatenate([entries.gains, gains.ravel()]), weights, budget)
        rows, levels = np.nonzero(gains >= cut - NEAR)
        entries = entries.where(entries.gains >= cut - NEAR)
        entries = Entries(
            np.concatenate([entries.gains, gains[rows, levels]]),
            np.concatenate([entries.classes, classes[rows]]),
            np.concatenate([entries.levels, levels + first]),
        )
        deeper = (room_here > depth) & (table[:, -1] >= cut - NEAR)
        classes, first, depth = classes[deeper], depth, 4 * depth
    return entries, cut


def _cut(gains: Float, weights: Int, budget: int) -> float:
    """The lowest gain among the `budget` highest, each counted `weights` times."""
    part, before = np.arange(len(gains)), 0
    high, low = float(gains.max()), float(gains.min(where=np.isfinite(gains), initial=np.inf))
    if len(gains) > BINS and low < high:
        # Sort only the bin that holds the cut.
        bins = np.minimum((high - gains) * (BINS / (high - low)), BINS).astype(np.int64)
        filled = np.cumsum(np.bincount(bins, weights=weights))
        holds = int(np.searchsorted(filled, budget))
        part, before = np.flatnonzero(bins == holds), int(filled[holds - 1]) if holds else 0
    order = part[np.argsort(-gains[part])]
    return float(gains[order[int(np.searchsorted(np.cumsum(weights[order]), budget - before))]])


def _prompts_in_order(near: Entries, ranks: Int, of: Int, members: Int) -> Int:
    """The prompts of each entry, by the entry's rank and then by index."""
    by_class = np.argsort(of, kind="stable")
    first_of_class = np.cumsum(members) - members
    size = members[near.classes]
    entry = np.repeat(np.arange(len(size)), size)
    index = np.arange(len(entry)) - (np.cumsum(size) - size)[entry]
    prompts = by_class[first_of_class[near.classes[entry]] + index]
    return prompts[np.lexsort((prompts, ranks[entry]))]


def _ranks(rule: Marginal, post: Posterior, near: Entries) -> Int:
    """(E,) the order of entries; equal where only the index of the prompt decides."""
    keys: list[Any]
    if rule.exact is None or len(near.gains) == 1:
        # The gain of a user's rule may be constant: then lower levels come first.
        columns = (-near.gains, post.successes[near.classes], near.levels)
        keys = list(zip(*(column.tolist() for column in columns), strict=True))
    else:
        keys = []  # the highest exact gain first, then the fewest successes
        for k, level in zip(near.classes.tolist(), near.levels.tolist(), strict=True):
            counts = int(post.successes[k]), int(post.trials[k])
            gain = rule.exact(Fraction(post.alpha[k]), Fraction(post.beta[k]), *counts, level)
            keys.append((-gain, counts[0]))
    places = {key: i for i, key in enumerate(sorted(set(keys)))}
    return np.array([places[key] for key in keys], dtype=np.int64)


def _refuse_rising(rule: Marginal, table: Float) -> None:
    """Raise ValueError if a user's gain rises with the level: the highest gains are not the optimum then.
    Exact gains are proven: hit utility in the paper, the others by differentiation."""
    if rule.exact is not None:
        return
    rises = np.argwhere(np.diff(table, axis=1) > 1e-9)
    if len(rises):
        row, level = rises[0]
        raise ValueError(
            f"rule {rule.name}: its marginal gain rises from level {level} to {level + 1} (row {row}), so "
            "giving each rollout to the highest gain is not optimal; refused"
        )


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
    sampled, (alpha, beta) = problem.sampled, problem.prior
    of = np.arange(len(sampled))
    if isinstance(alpha, float) and isinstance(beta, float):
        keys = sampled.successes * (int(sampled.trials.max()) + 1) + sampled.trials
        _, index, of = np.unique(keys, return_index=True, return_inverse=True)
        problem = problem[index]
    sampled, ones = problem.sampled, np.ones(len(problem.sampled))
    post = posterior(sampled.successes, sampled.trials, alpha * ones, beta * ones)
    return solve_classes(rule, post, problem.room(budget), of, budget)
