"""Where Phase B went by Phase A's counts c_i, for terminal, page, Prometheus, summaries and reports.

Only cycles divided by the run's rule count; uniform warm-up cycles do not. If all cycles are uniform (rule
`uniform`, or the gate is still shut), all count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hora_rl.common.config.allocation import needs_counts


@dataclass(frozen=True, slots=True)
class Share:
    """Prompts with c_i in `low`..`high`: shares of all prompts and of all Phase B rollouts; None if the total
    is zero."""

    low: int
    high: int
    prompts: float | None
    phase_b: float | None

    @property
    def name(self) -> str:
        """`0`, `1-3`."""
        return f"{self.low}" if self.low == self.high else f"{self.low}-{self.high}"


@dataclass(frozen=True, slots=True, eq=False)
class PhaseB:
    """Prompts with c_i = c and the Phase B rollouts they received, both (G0+1,)."""

    prompts: NDArray[np.int64]
    rollouts: NDArray[np.int64]

    @classmethod
    def count(cls, successes: ArrayLike, extra: ArrayLike, trials: int) -> PhaseB:
        """From c_i and Δ_i, both (n,); `trials` is G0."""
        c = np.asarray(successes, dtype=np.int64)
        rollouts = np.bincount(c, weights=np.asarray(extra, dtype=np.float64), minlength=trials + 1)
        return cls(np.bincount(c, minlength=trials + 1), rollouts.astype(np.int64))

    def shares(self, classes: Iterable[tuple[int, int]] | None = None) -> list[Share]:
        """One share per class (lowest c, highest c), by default per c."""
        each = [(c, c) for c in range(len(self.prompts))] if classes is None else classes
        return [
            Share(low, high, _part(self.prompts, low, high), _part(self.rollouts, low, high))
            for low, high in each
        ]


def total(cycles: Sequence[tuple[str, PhaseB]], trials: int) -> PhaseB:
    """The sum of (rule, statistics) pairs over the cycles that count."""
    zero = np.zeros(trials + 1, dtype=np.int64)
    chosen = [
        cycle for (_, cycle), yes in zip(cycles, counted([rule for rule, _ in cycles]), strict=True) if yes
    ]
    return PhaseB(
        sum((cycle.prompts for cycle in chosen), zero), sum((cycle.rollouts for cycle in chosen), zero)
    )


def counted(rules: Sequence[str] | NDArray[np.str_]) -> NDArray[np.bool_]:
    """Which cycles or groups, divided by `rules` (n,), count."""
    adaptive = np.array([needs_counts(rule) for rule in rules], dtype=bool)
    return adaptive if adaptive.any() else ~adaptive


def classes(trials: int) -> list[tuple[int, int]]:
    """The paper's classes of c_i for any G0, as (lowest c, highest c): none right, below half, half or more,
    all right. With G0 = 8: 0, 1-3, 4-7, 8."""
    half = (trials + 1) // 2
    between = [(low, high) for low, high in ((1, half - 1), (half, trials - 1)) if 1 <= low <= high]
    return [(0, 0), *between, (trials, trials)]


def _part(values: NDArray[np.int64], low: int, high: int) -> float | None:
    total_rollouts = int(values.sum())
    return int(values[low : high + 1].sum()) / total_rollouts if total_rollouts else None
