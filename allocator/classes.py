"""One prior, but trials that differ: prompts with the same successes and trials are alike and form a class.

After a round of Phase B a few hundred classes hold all prompts of a batch. Their gains are tabled as deep as
the budget reaches and no deeper, the cut is found by counting members, and only entries that float64 cannot
tell from the cut are compared as fractions.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from fractions import Fraction

import numpy as np

from hora_rl.allocator.blocks import refuse_rising
from hora_rl.allocator.posterior import Float, Int, Posterior, posterior
from hora_rl.allocator.rules.base import Marginal, Mask, Sampled
from hora_rl.allocator.ties import NEAR

FIRST_DEPTH = 8
DEEPEST_TABLE = 2048
BINS = 1024
DENSE_KEYS = 1 << 22  # keys up to here are counted in an array; beyond, they are sorted


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Log gains of (class, level) blocks, all (E,)."""

    gains: Float
    classes: Int
    levels: Int

    def __getitem__(self, index: Mask) -> Entries:
        return Entries(self.gains[index], self.classes[index], self.levels[index])

    def __add__(self, other: Entries) -> Entries:
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return Entries(*(np.concatenate(pair) for pair in pairs))


def allocate_classes(
    rule: Marginal, sampled: Sampled, prior: tuple[float, float], budget: int, cap: int | None
) -> Int:
    """Δ (n,) for one prior. `cap` bounds trials + Δ; the budget must fit."""
    of, successes, trials = _classes(sampled)
    members = np.bincount(of, minlength=len(successes))
    ones = np.ones(len(successes))
    post = posterior(successes, trials, prior[0] * ones, prior[1] * ones)
    room = np.full(len(trials), budget) if cap is None else np.minimum(cap - trials, budget)
    entries = _table(rule, post, members, room, budget)
    cut = _cut(entries, members, budget)
    above = entries.gains > cut + NEAR
    taken = np.bincount(entries.classes[above], minlength=len(members))
    near = entries[~above & (entries.gains >= cut - NEAR)]
    left = budget - int((taken * members).sum())
    extra: Int = taken[of]
    extra[_nearest(rule, post, near, of, left)] += 1
    return extra


def _classes(sampled: Sampled) -> tuple[Int, Int, Int]:
    """(class of each prompt (n,), successes (K,), trials (K,))."""
    width = int(sampled.trials.max()) + 1
    key = sampled.successes * width + sampled.trials
    if width * width <= DENSE_KEYS:
        keys = np.flatnonzero(np.bincount(key, minlength=1))
        place = np.zeros(width * width, dtype=np.int64)
        place[keys] = np.arange(len(keys))
        of = place[key]
    else:
        keys, of = np.unique(key, return_inverse=True)
    return of, keys // width, keys % width


def _table(rule: Marginal, post: Posterior, members: Int, room: Int, budget: int) -> Entries:
    """Every entry that can be taken, and some that cannot.

    A class goes deeper while its last gain still reaches the cut of what is tabled so far, which can only
    rise.
    """
    classes, first, depth = np.flatnonzero(room), 0, min(FIRST_DEPTH, budget)
    found = Entries(np.empty(0), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    while classes.size:
        slab = _slab(rule, post, classes, (first, depth), room)
        found = found + slab
        last = slab[(slab.levels == depth - 1) & (room[slab.classes] > depth)]
        if int(members[found.classes].sum()) >= budget:
            cut = _cut(found, members, budget) - NEAR
            found, last = found[found.gains >= cut], last[last.gains >= cut]
        classes, first, depth = last.classes, depth, 2 * depth
    return found


def _slab(rule: Marginal, post: Posterior, classes: Int, span: tuple[int, int], room: Int) -> Entries:
    """The entries of the levels in `span` of some classes, without those beyond their room."""
    part, levels = post[classes], np.arange(*span)
    if rule.table is not None and span[1] <= DEEPEST_TABLE:  # a recurrence from level 0 is cheaper
        gains = rule.log_table(part, span[1])[:, span[0] :]
    else:
        gains = rule.log_gain(part[:, None], levels[None, :])
    refuse_rising(rule, gains)
    row, level = np.nonzero(levels[None, :] < room[classes][:, None])
    return Entries(gains[row, level], classes[row], levels[level])


def _cut(entries: Entries, members: Int, budget: int) -> float:
    """The lowest gain among the `budget` highest, each entry counted for every member of its class."""
    weights, gains = members[entries.classes], entries.gains
    part, before = np.arange(len(gains)), 0
    low, high = float(gains.min()), float(gains.max())
    if len(gains) > BINS and np.isfinite(low) and low < high:
        # Few are sorted: those of the bin that holds the cut. Rounding keeps the order of bins that of gains.
        bins = ((high - gains) * (BINS / (high - low))).astype(np.int64)
        filled = np.cumsum(np.bincount(bins, weights=weights))
        holds = int(np.searchsorted(filled, budget))
        part, before = np.flatnonzero(bins == holds), int(filled[holds - 1]) if holds else 0
    order = part[np.argsort(-gains[part])]
    return float(gains[order[int(np.searchsorted(np.cumsum(weights[order]), budget - before))]])


def _nearest(rule: Marginal, post: Posterior, near: Entries, of: Int, left: int) -> Int:
    """The prompts (left,) of the first of these entries, in the order of ties."""
    ranks = _ranks(rule, post, near)
    order = np.argsort(ranks, kind="stable")
    chosen: list[Int] = []
    for same in np.split(order, np.flatnonzero(np.diff(ranks[order])) + 1):
        # Blocks of one rank are of different classes: their members share what is left by index.
        held = np.zeros(len(post), dtype=np.bool_)
        held[near.classes[same]] = True
        chosen.append(np.flatnonzero(held[of])[:left])
        left -= len(chosen[-1])
        if left == 0:
            break
    return np.concatenate(chosen)


def _ranks(rule: Marginal, post: Posterior, near: Entries) -> Int:
    """(E,) lower ones first in the order of ties; equal for entries that only the index of their prompts
    tells apart.
    """
    exact, keys = rule.exact, []
    for gain, k, level in zip(near.gains.tolist(), near.classes.tolist(), near.levels.tolist(), strict=True):
        successes, trials = int(post.successes[k]), int(post.trials[k])
        if exact is None:  # a user's gain may stay at one value: then lower levels come first
            keys.append((-gain, successes, level))
        else:
            value = exact(Fraction(post.alpha[k]), Fraction(post.beta[k]), successes, trials, level)
            keys.append((-value, successes, 0))
    places = {key: i for i, key in enumerate(sorted(set(keys)))}
    return np.array([places[key] for key in keys], dtype=np.int64)
