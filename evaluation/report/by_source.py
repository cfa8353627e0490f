"""What a run did with each of its data sources, from the metrics of its steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hora_rl.evaluation.run_folders import Run

EDGE = 10
"""A tenth of the steps at either end is the beginning and the end of training."""


@dataclass(frozen=True, slots=True)
class BySource:
    """One source: groups, rollouts and tokens in all; mean reward and success over the first and the last
    tenth of the steps, None where nothing says what a success is."""

    source: str
    groups: int
    rollouts: int
    tokens: int
    reward: tuple[float, float] | None
    success: tuple[float, float] | None


def sources_of(run: Run) -> list[str]:
    """The data sources of a run that has several."""
    keys = [key.split("/") for key in run.steps if key.startswith("source/")]
    return list(dict.fromkeys(parts[1] for parts in keys))


def by_source(run: Run) -> list[BySource]:
    """One row for each source; none for a run with one data set."""
    return list(_rows(run))


def _rows(run: Run) -> Iterator[BySource]:
    for source in sources_of(run):
        groups, rollouts, tokens = (_total(run, source, what) for what in ("groups", "rollouts", "tokens"))
        yield BySource(
            source, groups, rollouts, tokens, _ends(run, source, "reward"), _ends(run, source, "success")
        )


def _total(run: Run, source: str, what: str) -> int:
    return int(np.nansum(run.steps.get(f"source/{source}/{what}", np.zeros(0))))


def _ends(run: Run, source: str, what: str) -> tuple[float, float] | None:
    values = run.steps.get(f"source/{source}/{what}", np.zeros(0))
    values = values[~np.isnan(values)]
    n = max(1, len(values) // EDGE)
    return (float(values[:n].mean()), float(values[-n:].mean())) if len(values) else None
