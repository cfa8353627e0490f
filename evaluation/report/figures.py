"""The paper's figures, drawn from arrays. Functions return a matplotlib Figure; `save` writes PNG and SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from hora_rl.evaluation.pass_at_k import Estimate
from hora_rl.evaluation.phase_b import PhaseB, classes

if TYPE_CHECKING:
    from hora_rl.evaluation.results import Result
    from hora_rl.evaluation.run_folders import Run

Array = NDArray[np.float64]

# Safe for colour blindness (Okabe and Ito); markers distinguish lines in grey print.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
MARKERS = "osD^vPX"
BASE = "#808080"


def pass_at_k_figure(panels: Mapping[str, Mapping[str, Sequence[Estimate]]]) -> Figure:
    """Pass@K over K (log scale), one panel per benchmark, one line per method with its interval as a band."""
    figure, axes = _grid(len(panels), width=4.6, height=3.6)
    methods = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    styles = _styles(methods)
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        for name, points in lines.items():
            band(axis, [e.k for e in points], points, name, styles[name])
        ticks = sorted({e.k for points in lines.values() for e in points})
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks, [str(k) for k in ticks])
        axis.minorticks_off()
        _finish(axis, percent=True, title=title, xlabel="K", ylabel="Pass@K")
    return figure


def allocation_figure(*runs: Run) -> Figure:
    """Phase A outcomes and Phase B shares (paper, figure "Allocation dynamics"): average, then over time, of
    pooled runs (seeds of one experiment), without groups of a uniform warm-up."""
    step, trials, counts, extra = (
        np.concatenate([run.groups[name][run.outside_warm_up] for run in runs])
        for name in ("step", "trials", "successes", "extra")
    )
    figure, (left, right) = _grid(2, width=5.2, height=3.6)
    top = int(trials.max(initial=1))
    shares = PhaseB.count(counts, extra, top).shares()
    k, phase_b = np.arange(len(shares)), [s.phase_b or 0.0 for s in shares]
    left.bar(k - 0.2, [s.prompts or 0.0 for s in shares], 0.4, label="share of prompts", color=BASE)
    left.bar(k + 0.2, phase_b, 0.4, label="share of Phase B rollouts", color=COLORS[0])
    left.set_xticks(k)
    labels = {"xlabel": r"correct pre-rollouts $c_i$", "ylabel": "share"}
    _finish(left, percent=True, title="Average over training", **labels)
    steps, first = np.unique(np.sort(step), return_index=True)
    by_step = np.split(np.argsort(step, kind="stable"), first[1:])
    _dynamics_panel(right, steps, [PhaseB.count(counts[of], extra[of], top) for of in by_step], classes(top))
    return figure


def _dynamics_panel(
    axis: Axes, steps: Array, by_step: Sequence[PhaseB], classes_of_c: Sequence[tuple[int, int]]
) -> None:
    columns = zip(*(step.shares(classes_of_c) for step in by_step), strict=True)
    every = max(1, len(steps) // 8)
    for column, color, marker in zip(columns, COLORS, MARKERS, strict=False):
        share = np.array([s.phase_b for s in column], dtype=np.float64)
        axis.plot(
            steps,
            moving_average(share, 6),
            label=f"$c_i$ = {column[0].name}",
            color=color,
            marker=marker,
            markevery=every,
            markersize=4,
        )
    labels = {"xlabel": "optimizer step", "ylabel": "share of Phase B rollouts"}
    _finish(axis, percent=True, title="Over training (6-step average)", **labels)
    axis.set_ylim(bottom=0)


def during_training_figure(name: str, results: Sequence[Result]) -> Figure:
    """Pass@K by step of run `name`, one panel per benchmark, a line per K with its interval as a band."""
    series: dict[str, dict[int, list[Estimate]]] = {}
    for r in results:
        series.setdefault(r.title, {})[r.step] = r.estimates()
    figure, axes = _grid(len(series), width=5.2, height=3.4)
    for axis, (title, by_step) in zip(axes, series.items(), strict=True):
        ks = sorted({e.k for estimates in by_step.values() for e in estimates})
        for k, style in zip(ks, _styles([f"K={k}" for k in ks]).values(), strict=False):
            points = {step: e for step, curve in by_step.items() for e in curve if e.k == k}
            band(axis, list(points), list(points.values()), f"K={k}", style)
        _finish(axis, percent=True, title=f"{title}: {name}", xlabel="optimizer step", ylabel="Pass@K")
    return figure


def band(axis: Axes, x: Sequence[int], points: Sequence[Estimate], label: str, style: dict[str, Any]) -> None:
    low, high = [e.low for e in points], [e.high for e in points]
    axis.fill_between(x, low, high, alpha=0.12, color=style["color"])
    axis.plot(x, [e.value for e in points], label=label, markersize=4, **style)


def _finish(axis: Axes, *, percent: bool = False, **labels: Any) -> None:
    """Set labels and limits, draw the legend, and show y as percent if asked."""
    axis.set(**labels)
    if percent:
        axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, fontsize=8)


def _styles(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """As in the paper: the initial policy grey, HORA blue, the uniform baseline orange."""
    first = sorted((n for n in names if n != "Base"), key=lambda n: "HORA" not in n.upper())
    styles = {
        n: {"color": COLORS[i % len(COLORS)], "marker": MARKERS[i % len(MARKERS)]}
        for i, n in enumerate(first)
    }
    return {**styles, "Base": {"color": BASE, "marker": "x"}}


def _grid(panels: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Up to two panels in a row."""
    columns = min(2, max(1, panels))
    rows = -(-max(1, panels) // columns)
    # pyplot would keep every figure and need a display.
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = list(np.atleast_1d(np.asarray(figure.subplots(rows, columns, squeeze=False))).ravel())
    for unused in axes[max(1, panels) :]:
        unused.set_axis_off()
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    return figure, axes[:panels]


def moving_average(values: Array, window: int) -> Array:
    """Centred mean over `window` points of `values` (n,), fewer at the ends, ignoring non-finite values. A
    window of even size looks one further back than ahead."""
    known = pd.Series(np.where(np.isfinite(values), values, np.nan))
    return known.rolling(window, center=True, min_periods=1).mean().to_numpy()


def save(figure: Figure, folder: Path, name: str) -> None:
    """`folder`/`name`.png and .svg; equal figures give equal files."""
    figure.savefig(folder / f"{name}.png", dpi=150, metadata={"Software": None})
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
