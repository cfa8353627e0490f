"""The exact solver: give a budget of rollouts where the marginal gain is highest (paper, proposition 1).

    maximise Σ_i U_i(Δ_i)   subject to   Σ_i Δ_i = budget,  0 <= Δ_i <= room_i

Every U_i is concave, so the optimum is the set of the `budget` highest marginal gains. No loop runs over
rollouts. Equal gains go to the prompt with fewer successes, then to the lower index. Log gains in float64
decide, except those within `NEAR` of each other: these are compared as fractions.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from hora_rl.allocator.posterior import Float, Int, Posterior
from hora_rl.allocator.rules.base import Marginal, Mask

NEAR = 1e-9
"""Log gains are sums of a few dozen terms of size up to 1e2. Their error stays below this."""
FIRST_TABLE = 512
"""About how many entries the first table of `solve_classes` has."""
BINS = 1024


class Entries(NamedTuple):
    """Log gains of (class, level) pairs, all (E,)."""

    gains: Float
    classes: Int
    levels: Int

    def where(self, mask: Mask) -> Entries:
        """Some of the entries."""
        return Entries(self.gains[mask], self.classes[mask], self.levels[mask])


def solve_classes(rule: Marginal, post: Posterior, room: Int, of: Int, budget: int) -> Int:
    """Δ (n,) for K classes of equal prompts.

    `post` (K,) and `room` (K,) of each class: its posterior and the bound of each Δ_i. `of` (n,) is the class
    of each prompt. The room of all prompts must hold the budget.
    """
    members = np.bincount(of, minlength=len(post))
    entries, cut = _tabulate(rule, post, room, members, budget)
    is_near = entries.gains <= cut + NEAR
    extra: Int = np.bincount(entries.classes[~is_near], minlength=len(post))[of]
    near = entries.where(is_near)
    prompts = _prompts_in_order(near, _ranks(rule, post, near), of, members)
    np.add.at(extra, prompts[: budget - int(extra.sum())], 1)
    return extra


def _tabulate(rule: Marginal, post: Posterior, room: Int, members: Int, budget: int) -> tuple[Entries, float]:
    """Every entry that the optimum may take, and the lowest gain that it takes.

    A class gets more levels while its last gain reaches the cut of the entries so far, which only rises.
    """
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
        keys = list(map(_exact_key(rule.exact, post, near.classes, near.levels), range(len(near.gains))))
    places = {key: i for i, key in enumerate(sorted(set(keys)))}
    return np.array([places[key] for key in keys], dtype=np.int64)


def _exact_key(
    exact: Callable[..., Fraction], post: Posterior, classes: Int, levels: Int
) -> Callable[[int], tuple[Fraction, int]]:
    """Sort key of entry e: highest exact gain first, then fewest successes."""

    def key(e: int) -> tuple[Fraction, int]:
        k = int(classes[e])
        successes, trials = int(post.successes[k]), int(post.trials[k])
        gain = exact(Fraction(post.alpha[k]), Fraction(post.beta[k]), successes, trials, int(levels[e]))
        return -gain, successes

    return key


def _refuse_rising(rule: Marginal, table: Float) -> None:
    """Raise ValueError if a user's gain rises with the level: the highest gains are not the optimum then.

    Rules with exact gains are proven: hit utility in the paper, the others by differentiation.
    """
    if rule.exact is not None:
        return
    rises = np.argwhere(np.diff(table, axis=1) > 1e-9)
    if len(rises):
        row, level = rises[0]
        raise ValueError(
            f"rule {rule.name}: its marginal gain rises from level {level} to {level + 1} (row {row}), so "
            "giving each rollout to the highest gain is not optimal; refused"
        )
