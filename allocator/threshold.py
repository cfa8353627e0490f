"""A prior per prompt: search the gain above which everything is taken, then sort a thin band around it
exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from hora_rl.allocator.blocks import refuse_rising
from hora_rl.allocator.posterior import Float, Int, Posterior
from hora_rl.allocator.rules.base import Marginal
from hora_rl.allocator.ties import NEAR, exact_order

SAMPLE = 16  # every so manyth prompt
TABLE_PROMPTS = 512


def allocate_each(rule: Marginal, post: Posterior, budget: int, room: Int) -> Int:
    """Δ (n,) for posteriors that differ. `room` (n,) bounds each; it must hold the budget."""
    if len(post) <= TABLE_PROMPTS or (rule.guess is None and rule.table is not None):
        return _by_table(rule, post, budget, room)
    open_ = np.flatnonzero(room)
    if len(open_) < len(post):  # or a sample might hold no prompt that can take a rollout
        extra = np.zeros(len(post), dtype=np.int64)
        extra[open_] = allocate_each(rule, post[open_], budget, room[open_])
        return extra
    step = len(post) // 64
    refuse_rising(rule, rule.log_table(post[::step], 64))
    sure, all_ = _bracket(rule, post, budget, room)
    extra, left = sure.copy(), budget - int(sure.sum())
    prompts = np.repeat(np.arange(len(post)), all_ - sure)
    first = np.cumsum(all_ - sure) - (all_ - sure)
    levels = np.arange(len(prompts)) - first[prompts] + sure[prompts]
    gains = rule.log_gain(post[prompts], levels)
    order = _cut(rule, post, gains, left, lambda e: (prompts[e], levels[e]))
    np.add.at(extra, prompts[order[:left]], 1)
    return extra


def _by_table(rule: Marginal, post: Posterior, budget: int, room: Int) -> Int:
    """All gains down to a depth that is doubled until no deeper one can be taken."""
    n, deepest = len(post), min(budget, int(room.max()))
    depth = min(deepest, 8 * (budget // n) + 32)
    while True:
        gains = rule.log_table(post, depth)
        if depth >= deepest or _enough(gains, budget, room):
            break
        depth = min(deepest, 2 * depth)
    refuse_rising(rule, gains)
    if bool((room < depth).any()):
        gains = np.where(np.arange(depth) < room[:, None], gains, -np.inf)
    order = _cut(rule, post, gains.ravel(), budget, lambda e: (e // depth, e % depth))
    return np.bincount(order[:budget] // depth, minlength=n)


def _enough(gains: Float, budget: int, room: Int) -> bool:
    """Whether `budget` entries of the table beat every gain that lies deeper."""
    deeper = gains[room > gains.shape[1], -1]
    if not deeper.size:
        return True
    above = gains > deeper.max() + NEAR
    if len(deeper) < len(room):
        above &= np.arange(gains.shape[1]) < room[:, None]
    return int(np.count_nonzero(above)) >= budget


def _bracket(rule: Marginal, post: Posterior, budget: int, room: Int) -> tuple[Int, Int]:
    """Levels (n,) that are taken for sure and levels that may be: their sums hold the budget between them."""
    # A sample's threshold is off by about 1/sqrt(its size); a bracket that is too narrow is widened.
    part, part_room = post[::SAMPLE], room[::SAMPLE]
    share = min(max(1, round(budget * len(part) / len(post))), int(part_room.sum()))
    gain = _cut_gain(rule, part, share, part_room)
    width = 1 / np.sqrt(len(part))
    step = width
    while int((sure := _levels(rule, post, gain + step, room)).sum()) > budget:
        step *= 2
    step = width
    while int((all_ := _levels(rule, post, gain - step, room)).sum()) < budget:
        step *= 2
    return sure, all_


def _cut_gain(rule: Marginal, post: Posterior, budget: int, room: Int) -> float:
    """The lowest log gain among the `budget` rollouts of an optimum."""
    extra = allocate_each(rule, post, budget, room)
    given = np.flatnonzero(extra)
    return float(rule.log_gain(post[given], extra[given] - 1).min())


def _levels(rule: Marginal, post: Posterior, x: float, room: Int) -> Int:
    """How many levels of each prompt have a log gain of at least `x`, at most `room`."""
    if rule.guess is not None:
        return _corrected(rule, post, x, room)
    low, high = np.zeros(len(post), dtype=np.int64), room.copy()
    while bool((low < high).any()):
        middle = (low + high) // 2
        enough = rule.log_gain(post, middle) >= x
        low = np.where(enough & (low < high), middle + 1, low)
        high = np.where(enough, high, np.minimum(high, middle))
    return low


def _corrected(rule: Marginal, post: Posterior, x: float, room: Int) -> Int:
    """From the rule's own estimate, one step at a time to the exact count; estimates are off by very few."""
    assert rule.guess is not None
    estimate = np.nan_to_num(rule.guess(post, x), nan=0.0, posinf=float(room.max()), neginf=0.0)
    levels = np.clip(np.floor(estimate), 0, room).astype(np.int64)
    open_ = np.arange(len(post))
    while open_.size:
        part, at = post[open_], levels[open_]
        more = (at < room[open_]) & (rule.log_gain(part, at) >= x)
        fewer = ~more & (at > 0) & (rule.log_gain(part, np.maximum(at - 1, 0)) < x)
        levels[open_[more]] += 1
        levels[open_[fewer]] -= 1
        open_ = open_[more | fewer]
    return levels


def _cut(
    rule: Marginal, post: Posterior, gains: Float, left: int, where: Callable[[Int], tuple[Int, Int]]
) -> Int:
    """The entries with the `left` that are taken in front; only those float64 cannot tell apart are exact.

    `where` gives the prompts and levels of entries: few are asked for, so no such array is made of the whole
    table.
    """
    if left <= 0 or left >= len(gains):
        return np.arange(len(gains))
    cut = np.partition(gains, len(gains) - left)[len(gains) - left]
    taken = np.flatnonzero(gains >= cut - NEAR)
    is_near = gains[taken] <= cut + NEAR
    above, near = taken[~is_near], taken[is_near]
    prompts, levels = where(near)
    exact = None
    if rule.exact is not None:
        fraction = rule.exact

        def exact(e: int) -> Fraction:
            i, k = int(prompts[e]), int(levels[e])
            alpha, beta = Fraction(post.alpha[i]), Fraction(post.beta[i])
            return fraction(alpha, beta, int(post.successes[i]), int(post.trials[i]), k)

    order = exact_order(gains[near], post.successes[prompts], prompts, exact)
    return np.concatenate([above, near[order]])
