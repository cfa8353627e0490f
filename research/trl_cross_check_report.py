"""From the cells of `research.trl_cross_check` to what they say: intervals, figure, table.

Seeds are paired: both sides meet the same prompts in the same order under one seed, so the difference of
their rewards at a step is free of the prompts' difficulty. The intervals are Student's t over seeds; those of
the windows hold together (Bonferroni), so that one of many windows does not cry wolf.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from mpmath import betainc, findroot
from numpy.typing import NDArray

from hora_rl.common.config import Config

Array = NDArray[np.float64]
WINDOWS, CONFIDENCE = 5, 0.95
NAMES = {"ours": "HORA, uniform", "async": "HORA, one step ahead", "trl": "TRL GRPOTrainer"}
TIMES = (0.25, 0.5, 0.75, 1.0)
RECENT = 3
COLORS = {"ours": "#0072B2", "async": "#009E73", "trl": "#E69F00"}


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


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean reward of our side minus TRL's over steps first..last, with its interval."""

    first: int
    last: int
    ours: float
    trl: float
    value: float
    low: float
    high: float

    @property
    def agrees(self) -> bool:
        return self.low <= 0.0 <= self.high


def t_quantile(p: float, freedom: int) -> float:
    """The value that Student's t with `freedom` degrees falls below with probability p > 1/2."""

    def excess(t: Any) -> Any:
        return 1 - betainc(freedom / 2, 0.5, 0, freedom / (freedom + t * t), regularized=True) / 2 - p

    return float(findroot(excess, (1.0, 20.0), solver="anderson"))


def stacked(cells: Sequence[Cell], side: str, name: str) -> Array:
    """(seeds, S): one metric of one side, in the order of seeds."""
    mine = sorted((c for c in cells if c.side == side), key=lambda c: c.seed)
    return np.array([getattr(c, name) for c in mine], dtype=np.float64)


def difference(ours: Array, trl: Array, first: int, last: int, windows: int = 1) -> Difference:
    """Of the means over steps first..last of `ours` and `trl` (seeds, S); the interval is one of
    `windows`."""
    a, b = ours[:, first : last + 1].mean(1), trl[:, first : last + 1].mean(1)
    paired, n = a - b, len(a)
    error = paired.std(ddof=1) / np.sqrt(n)
    half = t_quantile(1 - (1 - CONFIDENCE) / 2 / windows, n - 1) * error
    value = float(paired.mean())
    return Difference(
        first, last, float(a.mean()), float(b.mean()), value, value - float(half), value + float(half)
    )


def compare(ours: Array, trl: Array) -> tuple[Difference, list[Difference]]:
    """Over all steps, and over `WINDOWS` windows whose intervals hold together."""
    steps = ours.shape[1]
    edges = np.linspace(0, steps, WINDOWS + 1).astype(int)
    parts = [difference(ours, trl, int(a), int(b) - 1, WINDOWS) for a, b in pairwise(edges)]
    return difference(ours, trl, 0, steps - 1), parts


def rates(cells: Sequence[Cell], side: str, per_step: int) -> tuple[float, float]:
    """Rollouts per second, mean over seeds: from the end of the first step to the last, and of the whole
    command.

    The first step is left out of the one because it holds start-up and one-time preparation; the other holds
    all.
    """
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
    per_step = config.rollout.prompts_per_batch * config.rollout.group_size
    ours, trl = stacked(cells, "ours", "reward"), stacked(cells, "trl", "reward")
    whole, parts = compare(ours, trl)
    speed = {side: rates(cells, side, per_step) for side in NAMES}
    text = _markdown(config, cells, whole, parts, speed)
    found = {
        "settings": config.model_dump(mode="json", include={"rollout", "reward", "learner"}),
        "whole": asdict(whole),
        "windows": [asdict(p) for p in parts],
        "rollouts_per_second": {s: {"steady": a, "whole": b} for s, (a, b) in speed.items()},
        "cells": [asdict(c) for c in cells],
    }
    (out / "trl-cross-check.json").write_text(json.dumps(found, indent=1) + "\n")
    (out / "trl-cross-check.md").write_text(text)
    figure = _figure(cells)
    for kind in ("png", "svg"):
        figure.savefig(out / f"trl-cross-check.{kind}", dpi=150)
    return text


def _markdown(
    config: Config,
    cells: Sequence[Cell],
    whole: Difference,
    parts: Sequence[Difference],
    speed: dict[str, tuple[float, float]],
) -> str:
    rollout, seeds = config.rollout, len({c.seed for c in cells})
    lines = [
        f"Γ = {rollout.prompts_per_batch}, G = {rollout.group_size}, {config.learner.steps} steps, "
        f"learning rate {config.learner.optimizer.learning_rate:g}, {seeds} seeds a side, paired.",
        "",
        "| steps | HORA, uniform | TRL | difference | interval | contains 0 |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for d in (*parts, whole):
        name = f"all {d.last + 1}" if d is whole else f"{d.first + 1}–{d.last + 1}"
        lines.append(
            f"| {name} | {d.ours:.3f} | {d.trl:.3f} | {d.value:+.4f} | {d.low:+.4f} to {d.high:+.4f} "
            f"| {'yes' if d.agrees else 'no'} |"
        )
    heads = " | ".join(NAMES.values())
    lines += ["", f"| mean over steps and seeds | {heads} |", "|---|---:|---:|---:|"]
    for name, title, digits in (
        ("accuracy", "accuracy", 3),
        ("length", "tokens of a completion", 1),
        ("grad_norm", "gradient norm before clipping", 4),
        ("learning_rate", "learning rate", 8),
    ):
        lines.append(_row(title, [stacked(cells, side, name).mean() for side in NAMES], digits))
    steady, whole_command = zip(*(speed[side] for side in NAMES), strict=True)
    lines.append(_row("rollouts/s after the first step, training included", steady, 1))
    lines.append(_row("the same, of TRL's", [rate / speed["trl"][0] for rate in steady], 2))
    lines.append(_row("rollouts/s of the whole command, start-up included", whole_command, 1))
    longest = max(c.wall for c in cells if c.side == "trl")
    for second in (part * longest for part in TIMES):
        lines.append(_row(f"success after {second:.0f} s", [success_by(cells, s, second) for s in NAMES], 3))
    return "\n".join(lines) + "\n"


def _row(title: str, values: Sequence[float | None], digits: int) -> str:
    return f"| {title} | {' | '.join('–' if v is None else f'{v:.{digits}f}' for v in values)} |"


def _figure(cells: Sequence[Cell]) -> Figure:
    figure = Figure(figsize=(9.6, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for side, name in NAMES.items():
        values = stacked(cells, side, "reward")
        steps, mean, error = np.arange(1, values.shape[1] + 1), values.mean(0), values.std(0, ddof=1)
        left.plot(steps, mean, color=COLORS[side], label=name)
        left.fill_between(steps, mean - error, mean + error, color=COLORS[side], alpha=0.2, linewidth=0)
    left.set(xlabel="optimizer step", ylabel="mean reward", title="Learning curves; bands: ± 1 SD over seeds")
    left.legend(frameon=False, fontsize=8)
    whole, parts = compare(stacked(cells, "ours", "reward"), stacked(cells, "trl", "reward"))
    for d, color in ((whole, "#808080"), *((p, "#000000") for p in parts)):
        place = (d.first + d.last) / 2 + 1
        right.hlines(d.value, d.first + 1, d.last + 1, color=color)
        right.errorbar(
            place, d.value, [[d.value - d.low], [d.high - d.value]], fmt="o", color=color, capsize=3
        )
    right.axhline(0.0, color="#D55E00", linewidth=0.8)
    right.set(
        xlabel="optimizer step", ylabel="reward, HORA - TRL", title="Paired difference (grey: all steps)"
    )
    return figure
