"""Figures of a study: functions that return a matplotlib Figure for `evaluation.report.figures.save`."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from hora_rl.evaluation.report.figures import COLORS
from research.report.curves import Array, Compared, Curve
from research.report.mechanism import LABELS, VALUES, Groups, by_difficulty
from research.study.cells import Design

Arms = Mapping[str, Sequence[Curve]]
COARSE = ((0.0, 0.03), (0.03, 0.3), (0.3, 0.9), (0.9, 1.0))
WINDOW = 6
GREY = "#808080"
LINES = ("-", "--", ":", "-.")


def _style(arm: int) -> tuple[str, str]:
    """Colour and line of the arm at place `arm`: no two of the first 28 alike."""
    return COLORS[arm % len(COLORS)], LINES[arm // len(COLORS) % len(LINES)]


def pass_rates_figure(arms: Arms, design: Design) -> Figure:
    """Pass@1 and Pass@K over steps: the mean over seeds with its 95% t interval as a band."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, k in zip(axes, (1, design.pass_at), strict=True):
        for i, (arm, cells) in enumerate(arms.items()):
            mean, half = _interval(_watched(cells, design, k))
            steps, (color, line) = cells[0].steps, _style(i)
            axis.plot(steps, mean, line, color=color, linewidth=1.5, label=arm)
            axis.fill_between(steps, mean - half, mean + half, color=color, alpha=0.12, linewidth=0)
        axis.set(xlabel="optimizer step", ylabel=f"Pass@{k} (%)")
    return _with_legend(figure, axes[0])


def frontier_figure(arms: Arms, design: Design) -> Figure:
    """Pass@K against Pass@1 over training, the mean over seeds: higher at equal Pass@1 is better."""
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axis = figure.subplots()
    for i, (arm, cells) in enumerate(arms.items()):
        x, y = (_watched(cells, design, k).mean(axis=0) for k in (1, design.pass_at))
        color, line = _style(i)
        axis.plot(x, y, line, color=color, marker="o", markevery=[-1], linewidth=1.2, label=arm)
    axis.set(xlabel="Pass@1 (%)", ylabel=f"Pass@{design.pass_at} (%)")
    return _with_legend(figure, axis)


def forest_figure(decisive: Sequence[Compared], exploratory: Sequence[Compared]) -> Figure:
    """The differences of the primary metric in points, each with its interval, one below the other;
    exploratory ones below, in grey."""
    rows = [(c, COLORS[0]) for c in decisive] + [(c, GREY) for c in exploratory]
    figure = Figure(figsize=(7.2, 0.9 + 0.3 * len(rows)), layout="constrained")
    axis = figure.subplots()
    for y, (c, color) in enumerate(rows):
        d = c.primary
        if d.known:
            axis.plot([100 * d.low, 100 * d.high], [y, y], color=color, linewidth=1.5)
        axis.plot(100 * d.value, y, marker="o", color=color, markersize=5)
    axis.axvline(0, color=GREY, linewidth=1)
    axis.set_yticks(range(len(rows)), [f"{c.title} ({c.primary.seeds})" for c, _ in rows], fontsize=8)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set(xlabel="difference of the primary metric, points (seeds in brackets)")
    return figure


def mechanism_figure(found: Mapping[str, Groups], expected: Mapping[str, Groups]) -> Figure:
    """Share and update by success rate: points with 95% bars as found, lines as expected."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes, places = figure.subplots(1, 2), np.arange(len(LABELS))
    for axis, (name, title) in zip(axes, VALUES.items(), strict=True):
        for arm, color in zip(found, COLORS, strict=False):
            mean, error = by_difficulty(found[arm], name)
            axis.plot(places, by_difficulty(expected[arm], name)[0], color=color, linewidth=1.2, label=arm)
            axis.errorbar(places, mean, 1.96 * error, color=color, fmt="o", markersize=4, linewidth=1)
        axis.set_xticks(places, LABELS, rotation=30, fontsize=8)
        axis.set(xlabel="success rate of the prompt", ylabel=title)
    return _with_legend(figure, axes[0])


def allocation_figure(arms: Mapping[str, Groups]) -> Figure:
    """Mean group size over training, by the prompt's success rate at the time, a panel for each arm."""
    figure = Figure(figsize=(3.2 * len(arms), 3.4), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(arms), sharey=True))
    for axis, (arm, groups) in zip(axes, arms.items(), strict=True):
        for (low, high), color in zip(COARSE, COLORS, strict=False):
            inside = (groups.p >= low) & (groups.p < high + (high == 1.0))
            windows, sizes = groups.batch[inside] // WINDOW, groups.size[inside]
            every = np.unique(windows)
            means = [sizes[windows == w].mean() for w in every]
            axis.plot(WINDOW * (every + 0.5), means, color=color, label=f"p {low:g} to {high:g}")
        axis.set(xlabel="optimizer step", title=arm)
    axes[0].set_ylabel("rollouts of a group")
    return _with_legend(figure, axes[0])


def _watched(cells: Sequence[Curve], design: Design, k: int) -> Array:
    """Pass@k (S, T) in percent on the watched set."""
    return 100 * np.stack([c.mean(design.watched, f"pass@{k}") for c in cells])


def _interval(values: Array) -> tuple[Array, Array]:
    """Mean (T,) of values (S, T) over seeds, and half of its 95% interval; zero for one seed."""
    if len(values) == 1:
        return values[0], np.zeros(values.shape[1])
    return values.mean(axis=0), stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)


def _with_legend(figure: Figure, axis: Axes) -> Figure:
    figure.legend(*axis.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8)
    return figure
