"""Pass@K over training: the evaluations of each run by step, with the weights that each of them sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from hora_rl.evaluation.pass_at_k import Estimate
from hora_rl.evaluation.report.figures import COLORS, MARKERS
from hora_rl.evaluation.results import Result
from hora_rl.evaluation.run_folders import Run


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One evaluation of a benchmark: the step it is of, the weights it sampled, and its estimates."""

    benchmark: str
    step: int
    weights: str
    estimates: list[Estimate]


def evaluated(runs: Mapping[str, Run]) -> dict[str, list[Evaluated]]:
    """By run, the evaluations of benchmarks that were measured more than twice: before, after and between."""
    found = {name: [_row(r) for results in _series(run) for r in results] for name, run in runs.items()}
    return {name: rows for name, rows in found.items() if rows}


def training_figure(name: str, run: Run) -> Figure:
    """Pass@K by step, one panel per benchmark, one line per K with its interval as a band."""
    series = _series(run)
    figure = Figure(figsize=(5.2 * len(series), 3.4), layout="constrained")
    for axis, results in zip(figure.subplots(1, len(series), squeeze=False)[0], series, strict=True):
        found, steps = [r.estimates() for r in results], [r.step for r in results]
        for i, k in enumerate(sorted({e.k for estimates in found for e in estimates})):
            points = [next((e for e in estimates if e.k == k), None) for estimates in found]
            low, value, high = (
                np.array([np.nan if e is None else getattr(e, side) for e in points])
                for side in ("low", "value", "high")
            )
            color = COLORS[i % len(COLORS)]
            axis.fill_between(steps, low, high, color=color, alpha=0.12)
            axis.plot(
                steps, value, color=color, marker=MARKERS[i % len(MARKERS)], markersize=4, label=f"K={k}"
            )
        axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axis.set(title=f"{results[0].title}: {name}", xlabel="optimizer step", ylabel="Pass@K")
        axis.legend(frameon=False, fontsize=8)
    return figure


def _series(run: Run) -> list[list[Result]]:
    """The results of each benchmark that was measured during training, by step."""
    by_title: dict[str, list[Result]] = {}
    for result in run.results:
        by_title.setdefault(result.title, []).append(result)
    return [sorted(rs, key=_step) for rs in by_title.values() if len({r.step for r in rs}) > 2]


def _step(result: Result) -> int:
    return result.step


def _row(result: Result) -> Evaluated:
    return Evaluated(result.title, result.step, result.sampled or "–", result.estimates())


def columns(rows: Sequence[Evaluated]) -> list[int]:
    """Every K of these evaluations."""
    return sorted({e.k for row in rows for e in row.estimates})
