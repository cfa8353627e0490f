"""Predicted and measured values of a step. The caller supplies predictions, which need the model's shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PredictedRow:
    """One value of a step. `why`: assumptions of the prediction, or the reason for its absence."""

    title: str
    unit: str
    predicted: float | None
    measured: float | None
    why: str = ""

    @property
    def ratio(self) -> float | None:
        """Measured over predicted; None if one is missing or the prediction is zero."""
        if not self.predicted or self.measured is None:
            return None
        return self.measured / self.predicted


@dataclass(frozen=True, slots=True)
class Predicted:
    """Rows of one run and a sentence that explains them; empty if nothing can be predicted."""

    says: str
    rows: tuple[PredictedRow, ...] = ()


Predict = Callable[[Path], Predicted]
"""Run folder -> rows."""


def shown(value: float | None) -> str:
    """Three digits, thousands with commas, a dash for None."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
