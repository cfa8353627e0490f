"""`hora report RUN…`: the paper's tables and figures for any runs, as one HTML file and PNGs.

Runs with the same model and method (seeds) share a row and a curve: their mean, problem by problem. The
initial policy ("Base") comes from evaluations at step 0.
"""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from matplotlib.figure import Figure

from hora_rl.common.moves import moves
from hora_rl.evaluation.report.figures import (
    allocation_figure,
    during_training_figure,
    metrics_figure,
    pass_at_k_figure,
    save,
)
from hora_rl.evaluation.report.hits import hits_by_difficulty
from hora_rl.evaluation.report.pages import inline_svg, write_page
from hora_rl.evaluation.report.result_files import csv_table
from hora_rl.evaluation.report.tables import by_source, curves, latex, sources_of, summarise, table_1
from hora_rl.evaluation.results import Result
from hora_rl.evaluation.run_folders import Run, RunFolderError, load_run

CURVES = (("length/mean", "Mean response length (tokens)"), ("entropy", "Mean token entropy (nats)"))
LEARNING = (("success", "Success on training prompts"), ("reward/format", "Format reward"))


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Write `out`/report.html, with figures as PNG and SVG; returns the HTML path.

    Raises RunFolderError or ResultError naming a run that cannot be read.
    """
    if not folders:
        raise RunFolderError("no run to report on: name at least one run folder")
    runs = by_name([load_run(folder) for folder in folders])
    out.mkdir(parents=True, exist_ok=True)
    figures = {}
    for name, (title, figure) in _figures(runs).items():
        save(figure, out, name)
        figures[title] = inline_svg(figure)
    results = [r for run in runs.values() for r in run.results]
    if results:
        (out / "pass_at_k.csv").write_text(csv_table(results), encoding="utf-8")
    overview = table_1(list(runs.values()))
    if overview is not None:
        (out / "table_1.tex").write_text(latex(overview), encoding="utf-8")
    return write_page(
        out / "report.html",
        "runs",
        overview=overview,
        summaries=[summarise(n, r) for n, r in runs.items()],
        hits={name: rows for name, run in runs.items() if (rows := hits_by_difficulty(run))},
        moves={name: texts for name, run in runs.items() if (texts := moves(_steps(run)))},
        sources={name: found for name, run in runs.items() if (found := by_source(run))},
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


def _steps(run: Run) -> list[dict[str, float]]:
    """The metrics of each step; without those that it does not have."""
    rows = zip(*(column.tolist() for column in run.steps.values()), strict=True)
    found = (dict(zip(run.steps, row, strict=True)) for row in rows)
    return [{name: value for name, value in row.items() if not math.isnan(value)} for row in found]


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


def _figures(runs: Mapping[str, Run]) -> dict[str, tuple[str, Figure]]:
    """File name -> (title, figure)."""
    figures: dict[str, tuple[str, Figure]] = {}
    for model, panels in curves(list(runs.values())).items():
        figures[f"pass_at_k_{_slug(model)}"] = (f"Pass@K: {model}", pass_at_k_figure(panels))
    for name, run in runs.items():
        if success := [(f"source/{s}/success", f"Success: {s}") for s in sources_of(run)]:
            figures[f"by_source_{_slug(name)}"] = (
                f"Success by data source: {name}",
                metrics_figure({name: run}, success),
            )
    for name, run in runs.items():
        if results := _during_training(run):
            figures[f"during_training_{_slug(name)}"] = (
                f"Pass@K during training: {name}",
                during_training_figure(name, results),
            )
    for name, run in runs.items():
        if len(run.rules):
            figures[f"allocation_{_slug(name)}"] = (f"Allocation dynamics: {name}", allocation_figure(run))
    trained = {name: run for name, run in runs.items() if run.steps}
    if trained:
        figures["learning"] = ("Learning curves", metrics_figure(trained, LEARNING))
        figures["length_entropy"] = ("Length and entropy", metrics_figure(trained, CURVES))
    return figures


def _during_training(run: Run) -> list[Result]:
    """Results of the benchmarks that were evaluated at more than two steps, by benchmark and step."""
    steps = dict.fromkeys((r.title, r.step) for r in run.results)
    counts = Counter(title for title, _ in steps)
    return [r for title, n in counts.items() if n > 2 for r in run.results if r.title == title]


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
