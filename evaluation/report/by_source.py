"""Statistics of a run per data source, from its step metrics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hora_rl.evaluation.run_folders import Run

EDGE = 10
"""The first and last 1/EDGE of the steps are the beginning and the end of training."""


@dataclass(frozen=True, slots=True)
class BySource:
    """One source: total groups, rollouts and tokens; mean reward and success over the first and last tenth of
    steps, None if not recorded."""

    source: str
    groups: int
    rollouts: int
    tokens: int
    reward: tuple[float, float] | None
    success: tuple[float, float] | None


def sources_of(run: Run) -> list[str]:
    """The data sources of a run with several."""
    keys = [key.split("/") for key in run.steps if key.startswith("source/")]
    return list(dict.fromkeys(parts[1] for parts in keys))


def by_source(run: Run) -> list[BySource]:
    """One row per source; none for a run with one data set."""
    rows = []
    for source in sources_of(run):
        columns = {
            what: run.steps.get(f"source/{source}/{what}", np.zeros(0))
            for what in ("groups", "rollouts", "tokens", "reward", "success")
        }
        groups, rollouts, tokens = (int(np.nansum(columns[k])) for k in ("groups", "rollouts", "tokens"))
        reward, success = _ends(columns["reward"]), _ends(columns["success"])
        rows.append(BySource(source, groups, rollouts, tokens, reward, success))
    return rows


def _ends(values: NDArray[np.float64]) -> tuple[float, float] | None:
    values = values[~np.isnan(values)]
    n = max(1, len(values) // EDGE)
    return (float(values[:n].mean()), float(values[-n:].mean())) if len(values) else None
