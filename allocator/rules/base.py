"""What a rule is. Either its marginal gain, which the shared solver maximises exactly, or a division in closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from allocator.posterior import Float, Int, Posterior


@dataclass(frozen=True, slots=True)
class Marginal:
    """A rule that maximises Σ_i U_i(Δ_i) with concave U_i; `level` l counts the extra rollouts already given.

    log_gain(posterior, level) -> log of U(l+1) - U(l), elementwise over broadcast shapes; must not increase in l.
    exact(alpha, beta, trials, level) -> the same gain as a Fraction, to decide what float64 cannot.
    table(posterior, depth) -> (n, depth) log gains of levels 0..depth-1, where that is cheaper than log_gain.
    guess(posterior, x) -> about how many levels have a log gain of at least x, where a formula is known.
    """

    name: str
    log_gain: Callable[[Posterior, Int], Float]
    exact: Callable[[Fraction, Fraction, int, int], Fraction] | None = None
    table: Callable[[Posterior, int], Float] | None = None
    guess: Callable[[Posterior, float], Float] | None = None
    least_trials: int = 0

    def log_table(self, posterior: Posterior, depth: int) -> Float:
        """(n, depth) log gains of levels 0..depth-1."""
        if self.table is not None:
            return self.table(posterior, depth)
        return self.log_gain(posterior[:, None], np.arange(depth)[None, :])


@dataclass(frozen=True, slots=True)
class Division:
    """A rule given by its result: divide(successes (n,), room (n,), budget) -> extra (n,), extra <= room."""

    name: str
    divide: Callable[[Int, Int, int], Int]


Rule = Marginal | Division


def evenly(successes: Int, room: Int, budget: int) -> Int:
    """Divide as evenly as `room` (n,) allows; what does not divide goes to fewer successes, then to lower indices."""
    n = len(room)
    if n == 0:
        return np.zeros(0, dtype=np.int64)
    sizes = np.sort(room)
    # With t each, prompts whose room is below t are full: spent(t) = Σ_{room < t} room + t · (how many others).
    before = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    spent = before + sizes * (n - np.arange(n))
    full = int(np.searchsorted(spent, budget, side="right"))
    if full == n:
        return room.copy()
    each = (budget - int(before[full])) // (n - full)
    extra = np.minimum(room, each)
    left = budget - int(extra.sum())
    if left:
        open_ = np.flatnonzero(room > each)
        order = np.argsort(successes[open_], kind="stable")
        extra[open_[order[:left]]] += 1
    return extra
