"""The shared prior: prompts fall into classes by their count c, and the order of (class, level) blocks is
fixed.

With one prior and one G0 there are only G0 + 1 distinct posteriors. Which block (all prompts of a class, one
level) comes next depends on the marginals alone, not on how many prompts a class holds, so the order is
computed once, exactly, and an allocation is a cumulative sum along it. The order is that of the classes that
have prompts: a shard of solved prompts would otherwise wade through the thousands of levels at which an
absent c=0 still gains more. The order of a user's own rule is computed in every call.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import numpy as np

from hora_rl.allocator.posterior import Int, Posterior, posterior
from hora_rl.allocator.rules import OwnRule
from hora_rl.allocator.rules.base import Marginal
from hora_rl.allocator.ties import exact_order


def allocate_shared(
    rule: Marginal, successes: Int, trials: int, prior: tuple[float, float], budget: int, room: int | None
) -> Int:
    """Δ (n,) for one prior and one `trials`. `room` bounds every Δ_i; the budget must fit."""
    members = np.bincount(successes, minlength=trials + 1)
    present = (members > 0).tobytes()
    room = budget if room is None else min(room, budget)
    depth = min(64, room)
    order_of = _order.__wrapped__ if isinstance(rule, OwnRule) else _order
    while True:
        classes = order_of(rule, trials, prior, present, depth, depth == room)
        spent = np.cumsum(members[classes])
        if depth == room or (len(spent) and spent[-1] >= budget):
            break
        depth = min(room, 2 * depth)
    last = int(np.searchsorted(spent, budget))
    levels = np.bincount(classes[:last], minlength=trials + 1)
    extra = levels[successes]
    left = budget - (int(spent[last - 1]) if last else 0)
    if left:
        extra[np.flatnonzero(successes == classes[last])[:left]] += 1
    return extra


@lru_cache(maxsize=1024)
def _order(
    rule: Marginal, trials: int, prior: tuple[float, float], present: bytes, depth: int, closed: bool
) -> Int:
    """The class (its count c) of each block in order of gain, (B,). Level l of a class is its l-th block.

    `present`: which of the classes 0..trials have prompts, a bool array's bytes. `closed`: no level reaches
    `depth`, so all blocks above it are in order. Otherwise only those are that precede every block of level
    `depth` or deeper.
    """
    counts = np.flatnonzero(np.frombuffer(present, dtype=bool))
    ones = np.ones(len(counts))
    post = posterior(counts, np.full(len(counts), trials), prior[0] * ones, prior[1] * ones)
    gains = rule.log_table(post, depth + 1)
    refuse_rising(rule, gains)
    beyond = -np.inf if closed else gains[:, depth].max()
    classes, levels = np.nonzero(
        gains[:, :depth] > beyond if np.isfinite(beyond) else np.ones((len(counts), depth), bool)
    )
    order = exact_order(gains[classes, levels], classes, levels, _gain(rule, post, classes, levels))
    return counts[classes[order]]


def _gain(rule: Marginal, post: Posterior, classes: Int, levels: Int):  # type: ignore[no-untyped-def]
    if rule.exact is None:
        return None
    exact = rule.exact

    def gain(entry: int) -> Fraction:
        k = int(classes[entry])
        alpha, beta = Fraction(post.alpha[k]), Fraction(post.beta[k])
        return exact(alpha, beta, int(post.successes[k]), int(post.trials[k]), int(levels[entry]))

    return gain


def refuse_rising(rule: Marginal, gains: np.ndarray) -> None:
    """Raise ValueError when a gain rises with its level: then the highest gains are not the optimum."""
    if rule.exact is not None:
        return  # Ours are proven: the paper's for hit utility, by differentiation for the others.
    rises = np.argwhere(np.diff(gains, axis=1) > 1e-9)
    if len(rises):
        row, level = rises[0]
        raise ValueError(
            f"rule {rule.name}: its marginal gain rises from level {level} to {level + 1} (row {row}), so "
            "giving each rollout to the highest gain is not optimal; refused"
        )
