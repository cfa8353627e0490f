"""Figures of a study of curves. Every function returns a matplotlib Figure; `evaluation.report.figures.save`
writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import stats

from hora_rl.evaluation.report.figures import COLORS, MARKERS
from research.report.paired import Difference, power

Array = NDArray[np.float64]
Arms = Mapping[str, Mapping[str, Array]]


def pass_rates_figure(arms: Arms, k: int) -> Figure:
    """Pass@1 and Pass@K over steps: the mean over seeds with its 95% t interval as a band."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, name in zip(axes, ("pass@1", f"pass@{k}"), strict=True):
        for i, (arm, values) in enumerate(arms.items()):
            mean, half = _interval(100 * values[name])
            color = COLORS[i % len(COLORS)]
            axis.plot(values["step"], mean, color=color, linewidth=1.5, label=arm)
            axis.fill_between(values["step"], mean - half, mean + half, color=color, alpha=0.12, linewidth=0)
        axis.set(xlabel="optimizer step", ylabel=f"{name.replace('pass', 'Pass')} (%)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8)
    return figure


def frontier_figure(arms: Arms, k: int) -> Figure:
    """Pass@K against Pass@1 over training, the mean over seeds: higher at equal Pass@1 is better."""
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axis = figure.subplots()
    for i, (arm, values) in enumerate(arms.items()):
        x, y = (100 * values[name].mean(axis=0) for name in ("pass@1", f"pass@{k}"))
        color, marker = COLORS[i % len(COLORS)], MARKERS[i // len(COLORS) % len(MARKERS)]
        axis.plot(x, y, color=color, linewidth=1.2, label=arm)
        axis.plot(x[-1], y[-1], color=color, marker=marker, markersize=6)
    axis.set(xlabel="Pass@1 (%)", ylabel=f"Pass@{k} (%)")
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure


def forest_figure(
    decisive: Sequence[tuple[str, Difference]], exploratory: Sequence[tuple[str, Difference]] = ()
) -> Figure:
    """The differences of the primary metric in points, each with its interval, one below the other;
    exploratory ones below, in grey."""
    rows = [(name, d, COLORS[0]) for name, d in decisive] + [(name, d, "#808080") for name, d in exploratory]
    figure = Figure(figsize=(7.2, 0.9 + 0.3 * len(rows)), layout="constrained")
    axis = figure.subplots()
    for y, (_, d, color) in enumerate(rows):
        if d.seeds > 1:
            axis.plot([100 * d.low, 100 * d.high], [y, y], color=color, linewidth=1.5)
        axis.plot(100 * d.value, y, marker="o", color=color, markersize=5)
    axis.axvline(0, color="#808080", linewidth=1)
    axis.set_yticks(range(len(rows)), [f"{name} ({d.seeds})" for name, d, _ in rows], fontsize=8)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set(xlabel="difference of the area, points (seeds in brackets)")
    return figure


def power_figure(deviations: Sequence[float], seeds: Sequence[int] = (5, 10, 20)) -> Figure:
    """Probability of seeing an effect (points) at 5%, for the median deviation of the comparisons, by number
    of seeds."""
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axis = figure.subplots()
    deviation = float(np.median(deviations))
    effects = np.linspace(0, 4 * deviation, 60)
    for i, n in enumerate(seeds):
        axis.plot(
            100 * effects,
            [100 * power(e, deviation, n) for e in effects],
            color=COLORS[i],
            label=f"{n} seeds",
        )
    axis.axhline(80, color="#808080", linewidth=1, linestyle="--")
    axis.set(xlabel="true difference, points", ylabel="power (%)", ylim=(0, 100))
    axis.legend(frameon=False, fontsize=8)
    return figure


def _interval(values: Array) -> tuple[Array, Array]:
    """Mean (T,) of values (S, T) over seeds, and half of its 95% interval; zero for one seed."""
    if len(values) == 1:
        return values[0], np.zeros(values.shape[1])
    return values.mean(axis=0), stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
