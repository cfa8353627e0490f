"""`hora report RUN RUN… --compare`: curves, differing settings and evaluations of runs, in the terminal and
as one HTML page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hora_rl.common.console import plain_table
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import differing
from hora_rl.evaluation.report.figures import curves_figure, smoothed
from hora_rl.evaluation.report.pages import inline_svg, write_page
from hora_rl.evaluation.report.runs_report import by_name
from hora_rl.evaluation.report.terminal_curves import Array, chart, colour
from hora_rl.evaluation.run_folders import Run, RunFolderError, load_run

METRICS = ("success", "reward", "length/mean", "entropy")
OVER = {"step": "optimizer step", "rollouts": "rollouts", "tokens": "tokens", "hours": "hours of training"}
OWN = ("run.", "telemetry.", "queue.")
"""Configuration sections that do not change a run's behaviour."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs by display name. `curves`: metric -> run -> (x, smoothed, measured). `settings`: keys that
    differ, with each run's value."""

    runs: Mapping[str, Run]
    over: str
    curves: Mapping[str, Mapping[str, tuple[Array, Array, Array]]]
    settings: Sequence[tuple[str, Sequence[str]]]

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Table of runs: name, method, steps, rollouts, last success and reward."""
        return [
            (
                name,
                run.method,
                str(len(run.steps["step"])),
                f"{np.nansum(run.steps.get('rollouts', np.zeros(1))):,.0f}",
                *(_last(run, metric) for metric in ("success", "reward")),
            )
            for name, run in self.runs.items()
        ]

    @property
    def results(self) -> list[tuple[str, str, str, str]]:
        """(run, benchmark, step, Pass@K in percent) of every evaluation."""
        return [
            (
                name,
                result.title,
                str(result.step),
                ", ".join(f"Pass@{e.k} {100 * e.value:.1f}" for e in result.estimates()),
            )
            for name, run in self.runs.items()
            for result in run.results
        ]


HEAD = ("run", "method", "steps", "rollouts", "success", "reward")


def compare(folders: Sequence[Path], metrics: Sequence[str], over: str) -> Comparison:
    """Raises ConfigError for an unknown metric or `over`, RunFolderError for a run without a step."""
    if over not in OVER:
        raise ConfigError(f"--over {over}: none of {', '.join(OVER)}")
    runs = by_name([load_run(folder) for folder in folders])
    for name, run in runs.items():
        if "step" not in run.steps:
            raise RunFolderError(f"{name}: no optimizer step in its steps.jsonl yet, so there is no curve")
    known = sorted({metric for run in runs.values() for metric in run.steps})
    chosen = metrics or [metric for metric in METRICS if metric in known]
    for metric in chosen:
        if metric not in known:
            raise ConfigError(f"--metric {metric}: no run has it; they have {', '.join(known)}")
    places = {name: _places(name, run, over) for name, run in runs.items()}
    curves = {
        metric: {
            name: (places[name], smoothed(run.steps[metric]), run.steps[metric])
            for name, run in runs.items()
            if metric in run.steps
        }
        for metric in chosen
    }
    return Comparison(runs, over, curves, _settings(runs))


def show(found: Comparison, console: Console) -> None:
    """Print tables and curves."""
    table = _table(HEAD)
    for number, row in enumerate(found.rows):
        table.add_row(Text(f"━ {row[0]}", style=colour(number)), *map(Text, row[1:]))
    console.print(table, Text())
    if found.settings:
        table = _table(("setting", *found.runs))
        for key, values in found.settings:
            table.add_row(*map(Text, (key, *values)))
        console.print(table, Text())
    for metric, lines in found.curves.items():
        title = f"{metric} over {OVER[found.over]}"
        empty = (np.array([]), np.array([]))
        every = {name: lines[name][:2] if name in lines else empty for name in found.runs}
        console.print(chart(title, every, console.width))
    if found.results:
        table = _table(("run", "benchmark", "step", "Pass@K (%)"))
        for result in found.results:
            table.add_row(*map(Text, result))
        console.print(table)


def write(found: Comparison, path: Path) -> Path:
    """Write the page as one file for light and dark mode."""
    over, names = OVER[found.over], list(found.runs)
    drawn = {
        f"{metric} over {over}": inline_svg(curves_figure(lines, names, metric, over))
        for metric, lines in found.curves.items()
    }
    return write_page(path, "compare", found=found, head=HEAD, figures=drawn)


def _places(name: str, run: Run, over: str) -> Array:
    """x of each step on the axis `over`: the sum up to and including the step."""
    if over == "step":
        return run.steps["step"]
    column = "time/step" if over == "hours" else over
    if column not in run.steps:
        raise RunFolderError(f"{name}: its steps.jsonl has no {column!r}, so --over {over} cannot be drawn")
    scale = 3600.0 if over == "hours" else 1.0
    return np.cumsum(np.nan_to_num(run.steps[column])) / scale


def _last(run: Run, metric: str) -> str:
    values = run.steps.get(metric, np.array([np.nan]))
    return "–" if np.isnan(values).all() else f"{values[~np.isnan(values)][-1]:.3f}"


def _settings(runs: Mapping[str, Run]) -> list[tuple[str, list[str]]]:
    """Keys whose values differ between config.yaml files; – for a missing key."""
    return [
        (key, ["–" if value is None else str(value) for value in values])
        for key, values in differing([run.config for run in runs.values()])
        if not key.startswith(OWN)
    ]


def _table(head: Sequence[str]) -> Table:
    table = plain_table()
    for name in head:
        table.add_column(Text(name), overflow="fold")
    return table
