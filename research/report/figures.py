"""The figure of a study, for `evaluation.report.figures.save`."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from hora_rl.evaluation.report.figures import COLORS
from research.report.curves import Curve
from research.report.statistics import half_width
from research.study.cells import Design

LINES = ("-", "--", ":", "-.")


def curves_figure(arms: Mapping[str, Sequence[Curve]], design: Design) -> Figure:
    """Pass@1 and Pass@K over steps, the mean over seeds with its 95% t interval as a band; and Pass@K against
    Pass@1, where higher at equal Pass@1 is better."""
    figure = Figure(figsize=(14, 4), layout="constrained")
    axes = figure.subplots(1, 3)
    for i, (arm, cells) in enumerate(arms.items()):
        color, line = COLORS[i % len(COLORS)], LINES[i // len(COLORS) % len(LINES)]
        means = []
        for axis, k in zip(axes, (1, design.pass_at), strict=False):
            values = 100 * np.stack([c.mean(design.watched, f"pass@{k}") for c in cells])[:, None]
            mean, half, steps = values.mean(axis=(0, 1)), half_width(values), cells[0].steps
            axis.plot(steps, mean, line, color=color, linewidth=1.5, label=arm)
            axis.fill_between(steps, mean - half, mean + half, color=color, alpha=0.12, linewidth=0)
            axis.set(xlabel="optimizer step", ylabel=f"Pass@{k} (%)")
            means.append(mean)
        axes[2].plot(*means, line, color=color, marker="o", markevery=[-1], linewidth=1.2)
    axes[2].set(xlabel="Pass@1 (%)", ylabel=f"Pass@{design.pass_at} (%)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8)
    return figure
