"""`hora report RUN…`: the paper's tables and figures for any runs, as one HTML file and PNGs.

Runs with the same model and method (seeds) share a row and a curve: their mean, problem by problem. The
initial policy ("Base") comes from evaluations at step 0.
"""

import io
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from jinja2 import Environment, FileSystemLoader
from matplotlib import rc_context
from matplotlib.figure import Figure

from hora_rl.common.load import differing
from hora_rl.common.records import moves
from hora_rl.evaluation.phase_b import PhaseB
from hora_rl.evaluation.report.figures import (
    allocation_figure,
    during_training_figure,
    pass_at_k_figure,
    save,
)
from hora_rl.evaluation.report.tables import csv_table, curves, latex, table_1
from hora_rl.evaluation.run_folders import Run, RunFolderError, load_run

TEMPLATES = Path(__file__).with_name("templates")
INK = "#000000"
"""matplotlib's black (text, axes, seventh line). Replaced by the page's text colour."""
PLACES = ("run.", "telemetry.", "queue.")
"""Configuration sections that do not change a run's behaviour."""


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Write `out`/report.html, with figures as PNG and SVG; returns its path. Raises HoraError naming a run
    that cannot be read."""
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
    pages = Environment(autoescape=True, loader=FileSystemLoader(TEMPLATES), trim_blocks=True)
    page = pages.get_template("runs.html").render(
        overview=overview,
        summaries=[summarise(n, r) for n, r in runs.items()],
        settings=differing_settings(runs),
        moves={name: moved for name, run in runs.items() if (moved := moves(_steps(run)))},
        figures=figures,
        date=time.strftime("%Y-%m-%d %H:%M"),
        runs=runs,
        configuration=_configuration,
    )
    (out / "report.html").write_text(page, encoding="utf-8")
    return out / "report.html"


def differing_settings(runs: Mapping[str, Run]) -> list[tuple[str, list[str]]]:
    """Keys whose values differ between config.yaml files; – for a missing key."""
    return [
        (key, ["–" if value is None else str(value) for value in values])
        for key, values in differing([run.config for run in runs.values()])
        if not key.startswith(PLACES)
    ]


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


def _steps(run: Run) -> list[dict[str, float | None]]:
    """The metrics of each step; NaN where it has none."""
    rows = zip(*(column.tolist() for column in run.steps.values()), strict=True)
    return [dict(zip(run.steps, row, strict=True)) for row in rows]


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
        slug, steps = _slug(name), Counter(title for title, _ in {(r.title, r.step) for r in run.results})
        if results := [r for r in run.results if steps[r.title] > 2]:
            figure = during_training_figure(name, results)
            figures[f"during_training_{slug}"] = (f"Pass@K during training: {name}", figure)
        if len(run.rules):
            figures[f"allocation_{slug}"] = (f"Allocation dynamics: {name}", allocation_figure(run))
    return figures


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name)


@dataclass(frozen=True, slots=True)
class Summary:
    """Cost and statistics of a run. Shares are in 0..1; None if not recorded.

    `rollouts_per_batch` covers complete batches, `phase_b_…` groups outside a uniform warm-up.
    """

    name: str
    method: str
    started: str
    steps: int
    groups: int
    rollouts: int
    rollouts_per_batch: str
    tokens: int
    share_hit: float | None
    share_zero_signal: float | None
    share_mixed_phases: float | None
    phase_b_to_none: float | None
    phase_b_to_all: float | None


def summarise(name: str, run: Run) -> Summary:
    size, hits = run.groups["size"], run.groups["hits"]
    extra, counts, trials = (
        run.groups[field][run.outside_warm_up] for field in ("extra", "successes", "trials")
    )
    none, *_, all_right = PhaseB.count(counts, extra, int(trials.max(initial=1))).shares()
    return Summary(
        name=name,
        method=run.method,
        started=run.started or "–",
        steps=len(next(iter(run.steps.values()), np.unique(run.groups["step"]))),
        groups=len(size),
        rollouts=int(size.sum()),
        rollouts_per_batch=_per_batch(run),
        tokens=int(run.groups["tokens"].sum()),
        share_hit=float((hits > 0).mean()) if len(hits) else None,
        share_zero_signal=_mean_of(run, "groups/zero_signal"),
        share_mixed_phases=_mean_of(run, "groups/mixed_phases"),
        phase_b_to_none=none.phase_b,
        phase_b_to_all=all_right.phase_b,
    )


def _mean_of(run: Run, metric: str) -> float | None:
    values = run.steps.get(metric, np.array([]))
    return float(np.nanmean(values)) if len(values) else None


def _per_batch(run: Run) -> str:
    """Rollouts of complete batches, `1920` or `1918 to 1920`: Γ·G is allocated per batch, and a stale step
    mixes batches."""
    batches, index, groups = np.unique(run.groups["batch"], return_inverse=True, return_counts=True)
    sums = np.bincount(index, weights=run.groups["size"], minlength=len(batches)).astype(int)
    complete = sums[groups >= int(run.setting("rollout.prompts_per_batch", 0))]
    if not complete.size:
        return "–"
    low, high = complete.min(), complete.max()
    return str(low) if low == high else f"{low} to {high}"
