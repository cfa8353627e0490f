"""Types of rules: a marginal gain that the solver maximises, a closed-form division, or a split of both."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hora_rl.allocator.posterior import Float, Int, Posterior

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """Samples of n prompts: `successes` among `trials`, of which `extra` in Phase B. All (n,) int64."""

    successes: Int
    trials: Int
    extra: Int

    def __len__(self) -> int:
        return len(self.successes)

    def __getitem__(self, index: Mask | Int) -> Sampled:
        return Sampled(self.successes[index], self.trials[index], self.extra[index])


@dataclass(frozen=True, slots=True)
class Marginal:
    """A rule that maximises Σ_i U_i(Δ_i) with concave U_i; `level` l counts the extra rollouts already given.

    table(posterior, depth): (n, depth) log of U(l+1) - U(l) for l = 0..depth-1, not rising in l.
    exact(alpha, beta, successes, trials, level): one gain as a Fraction, for ties in float64.
    useful(sampled): (n,) prompts with any gain; only these are passed to the functions above.
    rest: divides among the other prompts what the useful ones cannot take. Set both or neither.
    """

    name: str
    table: Callable[[Posterior, int], Float]
    exact: Callable[[Fraction, Fraction, int, int, int], Fraction] | None = None
    least_trials: int = 0
    useful: Callable[[Sampled], Mask] | None = None
    rest: Marginal | Division | Split | None = None


@dataclass(frozen=True, slots=True)
class Division:
    """A closed-form rule: divide(sampled, room (n,), budget) -> extra (n,), extra <= room, which spends the
    whole budget. needs_counts: whether it uses successes."""

    name: str
    divide: Callable[[Sampled, Int, int], Int]
    needs_counts: bool = True


@dataclass(frozen=True, slots=True)
class Split:
    """A rule that splits the budget: parts(sampled, room (n,), budget) -> (prompts, rule, rollouts) in order.
    A part gets at most its room; the rest goes to the smallest groups. Only a `Division` may come to a prompt
    again."""

    name: str
    parts: Callable[[Sampled, Int, int], list[Part]]
    least_trials: int = 0


Rule = Marginal | Division | Split
Part = tuple[Mask, Rule, int]
Gain = Callable[[Posterior, Int], Float]


def level_up(start: Int, successes: Int, room: Int, budget: int) -> Int:
    """Δ (n,) that makes `start` + Δ as even as `room` allows: the lowest first, as water fills a vessel. The
    remainder goes to fewer successes, then to lower indices."""
    n = len(room)
    if n == 0:
        return np.zeros(0, dtype=np.int64)
    level = _level(start, start + room, budget)
    extra = np.clip(level - start, 0, room)
    left = budget - int(extra.sum())
    if left:
        open_ = np.flatnonzero((start <= level) & (extra < room))
        order = np.argsort(successes[open_], kind="stable")
        extra[open_[order[:left]]] += 1
    return extra


def _level(start: Int, end: Int, budget: int) -> int:
    """The highest level t with Σ clip(t, start, end) - start <= budget, which fits below `end`."""
    levels = range(int(start.min()), int(end.max()) + 1)
    return levels[bisect_right(levels, budget, key=lambda t: int((np.clip(t, start, end) - start).sum())) - 1]
