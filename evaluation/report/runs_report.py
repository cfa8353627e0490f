"""`hora report RUN…`: the paper's tables and figures for any runs, as one HTML file and PNGs; of several runs
also what they spent and where their configurations differ, in the terminal.

Runs with the same model and method (seeds) share a row and a curve: their mean, problem by problem. The
initial policy ("Base") comes from evaluations at step 0.
"""

import io
import math
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import yaml
from jinja2 import Environment, FileSystemLoader
from matplotlib import rc_context
from matplotlib.figure import Figure
from rich.console import Console
from rich.text import Text

from hora_rl.common.console import plain_table
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import differing
from hora_rl.common.records import moves
from hora_rl.evaluation.report.figures import (
    OVER,
    allocation_figure,
    during_training_figure,
    metrics_figure,
    pass_at_k_figure,
    save,
)
from hora_rl.evaluation.report.result_files import csv_table
from hora_rl.evaluation.report.summaries import by_source, hits_by_difficulty, sources_of, summarise
from hora_rl.evaluation.report.tables import curves, latex, table_1
from hora_rl.evaluation.results import Result
from hora_rl.evaluation.run_folders import Run, RunFolderError, load_run

TEMPLATES = Path(__file__).with_name("templates")
INK = "#000000"
"""matplotlib's black (text, axes, seventh line). Replaced by the page's text colour."""
LEARNING = ("success", "reward", "reward/format", "length/mean", "entropy")
PLACES = ("run.", "telemetry.", "queue.")
"""Configuration sections that do not change a run's behaviour."""


def write_report(
    folders: Sequence[Path],
    out: Path,
    metrics: Sequence[str] = (),
    over: str = "step",
    console: Console | None = None,
) -> Path:
    """Write `out`/report.html, with figures as PNG and SVG; returns its path. Several runs are compared on
    `console` too.

    `metrics` of steps.jsonl are drawn over `over`, a key of `OVER`. Raises RunFolderError or ResultError
    naming a run that cannot be read, ConfigError for an unknown metric or axis.
    """
    if not folders:
        raise RunFolderError("no run to report on: name at least one run folder")
    runs = by_name([load_run(folder) for folder in folders])
    _check(runs, metrics, over)
    out.mkdir(parents=True, exist_ok=True)
    figures = {}
    for name, (title, figure) in _figures(runs, metrics, over).items():
        save(figure, out, name)
        figures[title] = inline_svg(figure)
    results = [r for run in runs.values() for r in run.results]
    if results:
        (out / "pass_at_k.csv").write_text(csv_table(results), encoding="utf-8")
    overview = table_1(list(runs.values()))
    if overview is not None:
        (out / "table_1.tex").write_text(latex(overview), encoding="utf-8")
    pages = Environment(autoescape=True, loader=FileSystemLoader(TEMPLATES), trim_blocks=True)
    page = pages.get_template("runs.html").render(
        overview=overview,
        summaries=[summarise(n, r) for n, r in runs.items()],
        settings=differing_settings(runs),
        hits={name: rows for name, run in runs.items() if (rows := hits_by_difficulty(run))},
        moves={name: texts for name, run in runs.items() if (texts := moves(_steps(run)))},
        sources={name: sources for name, run in runs.items() if (sources := by_source(run))},
        evaluated={
            name: (ks, [f"Pass@{k}" for k in ks], during)
            for name, run in runs.items()
            if (during := _during_training(run))
            for ks in [sorted({k for r in during for k in r.ks})]
        },
        figures=figures,
        date=time.strftime("%Y-%m-%d %H:%M"),
        runs=runs,
        configuration=_configuration,
    )
    (out / "report.html").write_text(page, encoding="utf-8")
    if console is not None and len(runs) > 1:
        show(runs, console)
    return out / "report.html"


def show(runs: Mapping[str, Run], console: Console) -> None:
    """Print what each run did and spent, and where the configurations differ."""
    table = plain_table()
    for head in ("run", "method", "steps", "rollouts", "success", "reward"):
        table.add_column(head, overflow="fold")
    for name, run in runs.items():
        rollouts = np.nansum(run.steps.get("rollouts", np.zeros(1)))
        ends = [_last(run, metric) for metric in ("success", "reward")]
        row = (name, run.method, str(len(run.steps.get("step", ()))), f"{rollouts:,.0f}", *ends)
        table.add_row(*map(Text, row))
    console.print(table, Text())
    if settings := differing_settings(runs):
        table = plain_table()
        for head in ("setting", *runs):
            table.add_column(Text(head), overflow="fold")
        for key, values in settings:
            table.add_row(*map(Text, (key, *values)))
        console.print(table, Text())


def _last(run: Run, metric: str) -> str:
    values = run.steps.get(metric, np.array([np.nan]))
    return "–" if np.isnan(values).all() else f"{values[~np.isnan(values)][-1]:.3f}"


def differing_settings(runs: Mapping[str, Run]) -> list[tuple[str, list[str]]]:
    """Keys whose values differ between config.yaml files; – for a missing key."""
    return [
        (key, ["–" if value is None else str(value) for value in values])
        for key, values in differing([run.config for run in runs.values()])
        if not key.startswith(PLACES)
    ]


def _check(runs: Mapping[str, Run], metrics: Sequence[str], over: str) -> None:
    if over not in OVER:
        raise ConfigError(f"--over {over}: none of {', '.join(OVER)}")
    column = OVER[over][0]
    for name, run in runs.items():
        if over != "step" and run.steps and column not in run.steps:
            raise RunFolderError(
                f"{name}: its steps.jsonl has no {column!r}, so --over {over} cannot be drawn"
            )
    known = sorted({metric for run in runs.values() for metric in run.steps})
    for metric in metrics:
        if metric not in known:
            raise ConfigError(f"--metric {metric}: no run has it; they have {', '.join(known)}")


def inline_svg(figure: Figure) -> str:
    """The figure as a transparent `<svg>`, with black replaced by the page's text colour."""
    file = io.StringIO()
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    return re.sub(rf"(fill|stroke): {INK}", r"\1: currentColor", svg).replace(
        "<text ", '<text fill="currentColor" '
    )


def _steps(run: Run) -> list[dict[str, float]]:
    """The metrics of each step; without those that it does not have."""
    rows = zip(*(column.tolist() for column in run.steps.values()), strict=True)
    steps = (dict(zip(run.steps, row, strict=True)) for row in rows)
    return [{name: value for name, value in step.items() if not math.isnan(value)} for step in steps]


def _configuration(run: Run) -> str:
    """config.yaml without possible passwords: the addresses of Redis and of alerts."""
    shown = {section: values for section, values in run.config.items() if section != "queue"}
    if "telemetry" in shown:
        shown["telemetry"] = {key: v for key, v in shown["telemetry"].items() if key != "on_alert"}
    return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True) if shown else "no config.yaml"


def by_name(runs: Sequence[Run]) -> dict[str, Run]:
    """Runs by folder name; repeated names get a number."""
    named: dict[str, Run] = {}
    for run in runs:
        same = sum(other.name == run.name for other in named.values())
        named[run.name + (f" ({same + 1})" if same else "")] = run
    return named


def _figures(runs: Mapping[str, Run], metrics: Sequence[str], over: str) -> dict[str, tuple[str, Figure]]:
    """File name -> (title, figure)."""
    figures: dict[str, tuple[str, Figure]] = {}
    for model, panels in curves(list(runs.values())).items():
        figures[f"pass_at_k_{_slug(model)}"] = (f"Pass@K: {model}", pass_at_k_figure(panels))
    for name, run in runs.items():
        slug = _slug(name)
        if sources := [f"source/{s}/success" for s in sources_of(run)]:
            figure = metrics_figure({name: run}, sources)
            figures[f"by_source_{slug}"] = (f"Success by data source: {name}", figure)
        if results := _during_training(run):
            figure = during_training_figure(name, results)
            figures[f"during_training_{slug}"] = (f"Pass@K during training: {name}", figure)
        if len(run.rules):
            figures[f"allocation_{slug}"] = (f"Allocation dynamics: {name}", allocation_figure(run))
    trained = {name: run for name, run in runs.items() if run.steps}
    drawn = metrics or [m for m in LEARNING if any(m in run.steps for run in trained.values())]
    if trained and drawn:
        figures["learning"] = ("Learning curves", metrics_figure(trained, drawn, over))
    return figures


def _during_training(run: Run) -> list[Result]:
    """Results of the benchmarks that were evaluated at more than two steps, by benchmark and step."""
    steps = dict.fromkeys((r.title, r.step) for r in run.results)
    counts = Counter(title for title, _ in steps)
    return [r for title, n in counts.items() if n > 2 for r in run.results if r.title == title]


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
