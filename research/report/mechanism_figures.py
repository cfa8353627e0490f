"""Allocation by difficulty and over training, and what it yields, foretold and found: figures and a table."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure

from hora_rl.evaluation.report.figures import COLORS
from hora_rl.evaluation.report.markdown import markdown_table
from research.report.mechanism import EDGES, Groups, by_difficulty

Arms = Mapping[str, Groups]
LABELS = [f"{low:g} to {high:g}" for low, high in pairwise(EDGES)]
VALUES = (
    ("share", "share of ∇log p realised"),
    ("update", "move of the success logit under grpo"),
)
COARSE = ((0.0, 0.03), (0.03, 0.3), (0.3, 0.9), (0.9, 1.0))
WINDOW = 6


def mechanism_figure(found: Arms, told: Arms) -> Figure:
    """Share and update by success rate: points with 95% bars as found, lines as foretold."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes, places = figure.subplots(1, 2), np.arange(len(LABELS))
    for axis, (name, title) in zip(axes, VALUES, strict=True):
        for i, arm in enumerate(found):
            mean, error, _ = by_difficulty(found[arm], getattr(found[arm], name))
            expected, _, _ = by_difficulty(told[arm], getattr(told[arm], name))
            axis.plot(places, expected, color=COLORS[i], linewidth=1.2, label=arm)
            axis.errorbar(places, mean, 1.96 * error, color=COLORS[i], fmt="o", markersize=4, linewidth=1)
        axis.set_xticks(places, LABELS, rotation=30, fontsize=8)
        axis.set(xlabel="success rate of the prompt", ylabel=title)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8)
    return figure


def allocation_figure(arms: Arms) -> Figure:
    """Mean group size over training, by the prompt's success rate at the time, a panel for each arm."""
    figure = Figure(figsize=(3.2 * len(arms), 3.4), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(arms), sharey=True))
    for axis, (arm, groups) in zip(axes, arms.items(), strict=True):
        for i, (low, high) in enumerate(COARSE):
            inside = (groups.p >= low) & (groups.p < high + (high == 1.0))
            windows = groups.batch[inside] // WINDOW
            middle = [WINDOW * (w + 0.5) for w in np.unique(windows)]
            sizes = [groups.size[inside][windows == w].mean() for w in np.unique(windows)]
            axis.plot(middle, sizes, color=COLORS[i], label=f"p {low:g} to {high:g}")
        axis.set(xlabel="optimizer step", title=arm)
    axes[0].set_ylabel("rollouts of a group")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8)
    return figure


def mechanism_table(found: Arms, told: Arms) -> str:
    """The figure's numbers as Markdown."""
    lines = [
        "## Mechanism",
        "",
        "By the prompt's success rate when it was sampled: found in training / foretold by drawing the same "
        "batches anew from the allocator and binomial outcomes alone.",
    ]
    for name, title in VALUES:
        rows = ([arm, *_cells(groups, told[arm], name)] for arm, groups in found.items())
        lines += ["", f"{title[0].upper()}{title[1:]}:", "", *markdown_table(["arm", *LABELS], rows)]
    return "\n".join(lines) + "\n"


def _cells(found: Groups, told: Groups, name: str) -> list[str]:
    mean, error, _ = by_difficulty(found, getattr(found, name))
    expected, _, _ = by_difficulty(told, getattr(told, name))
    return [
        f"{m:.3f} ± {1.96 * e:.3f} / {x:.3f}" if np.isfinite(e) else "—"
        for m, e, x in zip(mean, error, expected, strict=True)
    ]
