"""Pass@K during training: the evaluations of each run by step, with the weights that each sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from hora_rl.evaluation.pass_at_k import Estimate
from hora_rl.evaluation.report.figures import during_training_figure
from hora_rl.evaluation.results import Result
from hora_rl.evaluation.run_folders import Run


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One evaluation of a benchmark: its step, the weights it sampled, and its estimates."""

    benchmark: str
    step: int
    weights: str
    estimates: list[Estimate]


def evaluated(runs: Mapping[str, Run]) -> dict[str, list[Evaluated]]:
    """By run, the evaluations of benchmarks that have results at more than two steps."""
    found = {
        name: [
            Evaluated(r.title, r.step, r.sampled or "–", r.estimates())
            for results in _series(run).values()
            for r in results
        ]
        for name, run in runs.items()
    }
    return {name: rows for name, rows in found.items() if rows}


def training_figure(name: str, run: Run) -> Figure:
    """Pass@K by step, one panel per benchmark, one line per K with its interval as a band."""
    series = {title: {r.step: r.estimates() for r in results} for title, results in _series(run).items()}
    return during_training_figure(name, series)


def _series(run: Run) -> dict[str, list[Result]]:
    """The results of each benchmark that was evaluated during training, by step (`Run.results` rises)."""
    by_title: dict[str, list[Result]] = {}
    for result in run.results:
        by_title.setdefault(result.title, []).append(result)
    return {title: rs for title, rs in by_title.items() if len({r.step for r in rs}) > 2}


def columns(rows: Sequence[Evaluated]) -> list[int]:
    """Every K of these evaluations."""
    return sorted({e.k for row in rows for e in row.estimates})
