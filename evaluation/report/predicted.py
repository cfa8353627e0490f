"""Predicted against measured: rows of the report's table. What predicts needs the model's shape, so the
caller of the report brings it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PredictedRow:
    """One figure of a step. `why` is what the prediction assumes, or the reason why there is none."""

    title: str
    unit: str
    predicted: float | None
    measured: float | None
    why: str = ""

    @property
    def ratio(self) -> float | None:
        """Measured over predicted; None where one of them is missing or nothing was predicted."""
        if not self.predicted or self.measured is None:
            return None
        return self.measured / self.predicted


@dataclass(frozen=True, slots=True)
class Predicted:
    """The rows of one run and what they stand for, in a sentence; no rows where nothing could be
    predicted."""

    says: str
    rows: tuple[PredictedRow, ...] = ()


Predict = Callable[[Path], Predicted]
"""From a run's folder to its rows."""


def shown(value: float | None) -> str:
    """Three digits, large numbers with commas; a dash for None."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
