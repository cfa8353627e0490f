"""The report of `research.trl_cross_check`: intervals, figure, table.

Seeds are paired: both sides meet the same prompts in the same order under one seed, so the difference of
their rewards at a step is free of the prompts' difficulty. The intervals are Student's t over seeds; those of
the windows hold together (Bonferroni), so that one of many windows raises no false alarm.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hora_rl.common.config import Config
from hora_rl.evaluation.report.figures import COLORS
from hora_rl.evaluation.report.markdown import markdown_table
from research.report.statistics import ALPHA, paired_difference

Array = NDArray[np.float64]
WINDOWS, RECENT = 5, 3
NAMES = {"ours": "HORA, uniform", "async": "HORA, one step ahead", "trl": "TRL GRPOTrainer"}
COLOR_OF = {"ours": COLORS[0], "async": COLORS[2], "trl": COLORS[1]}
TIMES = (0.25, 0.5, 0.75, 1.0)
OURS = {
    "reward": "reward",
    "accuracy": "reward/accuracy",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "length": "length/mean",
}
TRL = {**OURS, "accuracy": "rewards/accuracy/mean", "length": "completions/mean_length"}
"""Names of a cell's metrics in the records of each side."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One side with one seed; lists over the S steps. `reward`: mean over the batch. `grad_norm`: before
    clipping. `length`: mean tokens of a completion. `ended`: seconds from the start of the command. `wall`:
    seconds in all.
    """

    side: str
    seed: int
    reward: list[float]
    accuracy: list[float]
    grad_norm: list[float]
    learning_rate: list[float]
    length: list[float]
    ended: list[float]
    wall: float


def cell_of(
    side: str,
    seed: int,
    steps: Sequence[Mapping[str, float]],
    names: Mapping[str, str],
    ended: list[float],
    wall: float,
) -> Cell:
    """The cell of a run's records."""
    metrics = {name: [step[key] for step in steps] for name, key in names.items()}
    return Cell(side=side, seed=seed, ended=ended, wall=wall, **metrics)


@dataclass(frozen=True, slots=True)
class Window:
    """Mean reward of our side and of TRL over steps first..last, and the difference with its interval."""

    first: int
    last: int
    ours: float
    trl: float
    value: float
    low: float
    high: float


def stacked(cells: Sequence[Cell], side: str, name: str) -> Array:
    """(seeds, S): one metric of one side, in the order of seeds."""
    mine = sorted((c for c in cells if c.side == side), key=lambda c: c.seed)
    return np.array([getattr(c, name) for c in mine], dtype=np.float64)


def compare(ours: Array, trl: Array) -> tuple[Window, list[Window]]:
    """Of rewards (seeds, S): over all steps, and over `WINDOWS` windows whose intervals hold together."""

    def window(first: int, end: int, alpha: float) -> Window:
        a, b = ours[:, first:end].mean(1), trl[:, first:end].mean(1)
        d = paired_difference(a, b, alpha=alpha)
        return Window(first, end - 1, float(a.mean()), float(b.mean()), d.value, d.low, d.high)

    edges = np.linspace(0, ours.shape[1], WINDOWS + 1).astype(int).tolist()
    return window(0, edges[-1], ALPHA), [window(*part, ALPHA / WINDOWS) for part in pairwise(edges)]


def rates(cells: Sequence[Cell], side: str, per_step: int) -> tuple[float, float]:
    """Rollouts per second, mean over seeds: from the end of the first step, which holds one-time preparation,
    to the last; and of the complete command."""
    mine = [c for c in cells if c.side == side]
    steady = [per_step * (len(c.ended) - 1) / (c.ended[-1] - c.ended[0]) for c in mine]
    return float(np.mean(steady)), float(np.mean([per_step * len(c.ended) / c.wall for c in mine]))


def success_by(cells: Sequence[Cell], side: str, second: float) -> float | None:
    """Success of the `RECENT` newest steps that ended by `second` of the command, mean over seeds; None where
    a seed has none yet."""
    found = [
        [a for a, end in zip(c.accuracy, c.ended, strict=True) if end <= second][-RECENT:]
        for c in cells
        if c.side == side
    ]
    return float(np.mean([np.mean(each) for each in found])) if all(found) else None


def write_report(out: Path, config: Config, cells: Sequence[Cell]) -> str:
    """trl-cross-check.{json,md,png,svg} in `out`; returns the Markdown."""
    per_step = config.rollout.batch_size
    compared = compare(stacked(cells, "ours", "reward"), stacked(cells, "trl", "reward"))
    speed = {side: rates(cells, side, per_step) for side in NAMES}
    text = _markdown(config, cells, *compared, speed)
    found = {
        "settings": config.model_dump(mode="json", include={"rollout", "reward", "learner"}),
        "whole": asdict(compared[0]),
        "windows": [asdict(p) for p in compared[1]],
        "rollouts_per_second": {s: {"steady": a, "whole": b} for s, (a, b) in speed.items()},
        "cells": [asdict(c) for c in cells],
    }
    (out / "trl-cross-check.json").write_text(json.dumps(found, indent=1) + "\n")
    (out / "trl-cross-check.md").write_text(text)
    figure = _figure(cells, *compared)
    for kind in ("png", "svg"):
        figure.savefig(out / f"trl-cross-check.{kind}", dpi=150)
    return text


def _markdown(
    config: Config,
    cells: Sequence[Cell],
    every: Window,
    parts: Sequence[Window],
    speed: Mapping[str, tuple[float, float]],
) -> str:
    rollout, seeds = config.rollout, len({c.seed for c in cells})
    places = [*(f"{d.first + 1}–{d.last + 1}" for d in parts), f"all {every.last + 1}"]
    rows = [
        (
            *(place, f"{d.ours:.3f}", f"{d.trl:.3f}", f"{d.value:+.4f}", f"{d.low:+.4f} to {d.high:+.4f}"),
            "yes" if d.low <= 0.0 <= d.high else "no",
        )
        for place, d in zip(places, [*parts, every], strict=True)
    ]
    steady, overall = zip(*(speed[side] for side in NAMES), strict=True)
    longest = max(c.wall for c in cells if c.side == "trl")
    metrics = (
        ("accuracy", "accuracy", 3),
        ("length", "tokens of a completion", 1),
        ("grad_norm", "gradient norm before clipping", 4),
        ("learning_rate", "learning rate", 8),
    )
    means = [
        *(_row(t, [stacked(cells, s, name).mean() for s in NAMES], digits) for name, t, digits in metrics),
        _row("rollouts/s after the first step, training included", steady, 1),
        _row("the same, of TRL's", [rate / speed["trl"][0] for rate in steady], 2),
        _row("rollouts/s of the whole command, start-up included", overall, 1),
        *(
            _row(f"success after {second:.0f} s", [success_by(cells, s, second) for s in NAMES], 3)
            for second in (part * longest for part in TIMES)
        ),
    ]
    heads = ["steps", "HORA, uniform", "TRL", "difference", "interval", "contains 0"]
    lines = [
        f"Γ = {rollout.prompts_per_batch}, G = {rollout.group_size}, {config.learner.steps} steps, "
        f"learning rate {config.learner.optimizer.learning_rate:g}, {seeds} seeds a side, paired.",
        "",
        *markdown_table(heads, rows, numbers=True),
        "",
        *markdown_table(["mean over steps and seeds", *NAMES.values()], means, numbers=True),
    ]
    return "\n".join(lines) + "\n"


def _row(title: str, values: Sequence[Any], digits: int) -> list[str]:
    return [title, *("–" if v is None else f"{v:.{digits}f}" for v in values)]


def _figure(cells: Sequence[Cell], every: Window, parts: Sequence[Window]) -> Figure:
    figure = Figure(figsize=(9.6, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for side, name in NAMES.items():
        values = stacked(cells, side, "reward")
        steps, mean, error = np.arange(1, values.shape[1] + 1), values.mean(0), values.std(0, ddof=1)
        left.plot(steps, mean, color=COLOR_OF[side], label=name)
        left.fill_between(steps, mean - error, mean + error, color=COLOR_OF[side], alpha=0.2, linewidth=0)
    left.set(xlabel="optimizer step", ylabel="mean reward", title="Learning curves; bands: ± 1 SD over seeds")
    left.legend(frameon=False, fontsize=8)
    for d, color in ((every, "#808080"), *((part, "black") for part in parts)):
        right.hlines(d.value, d.first + 1, d.last + 1, color=color)
        bars = [[d.value - d.low], [d.high - d.value]]
        right.errorbar((d.first + d.last) / 2 + 1, d.value, bars, fmt="o", color=color, capsize=3)
    right.axhline(0.0, color=COLORS[4], linewidth=0.8)
    title = "Paired difference (grey: all steps)"
    right.set(xlabel="optimizer step", ylabel="reward, HORA - TRL", title=title)
    return figure
