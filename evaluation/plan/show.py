"""A plan as a table, as JSON and as a figure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from rich.console import Console
from rich.table import Table

from evaluation.console import say
from evaluation.plan.forecast import Plan, Row
from evaluation.report.figures import COLORS, MARKERS, save


def as_json(plan: Plan) -> str:
    """{"rows": [...], "recommended": {...}, "notes": [...]}; a row's keys are the fields of `Row`, shares
    between 0 and 1.
    """
    return json.dumps(
        {
            "rows": [asdict(row) for row in plan.rows],
            "recommended": asdict(plan.recommended),
            "notes": list(plan.notes),
        }
    )


def name_of(row: Row) -> str:
    """`hit_utility, stop at hit, 4 rounds`."""
    stop = f", stop at {row.stop}" if row.stop != "none" else ""
    return f"{row.rule}{stop}" + (f", {row.rounds} rounds" if row.rounds > 1 else "")


def show(plan: Plan) -> None:
    """Print all rows, the recommended one by difficulty, and the notes."""
    console = Console()
    table = Table(title="predicted, % with 90% intervals")
    for column in (
        "rule",
        "G",
        "G0",
        "prompts with a hit",
        "over uniform",
        "groups with signal",
        "tokens a prompt",
        "uniform G",
    ):
        table.add_column(column, justify="left" if column == "rule" else "right")
    for row in plan.rows:
        table.add_row(
            name_of(row),
            str(row.group_size),
            str(row.pre_rollouts),
            _share(row.hits, row.hits_low, row.hits_high),
            _share(row.gain, row.gain_low, row.gain_high, "+"),
            _share(row.signal, row.signal_low, row.signal_high),
            "-" if row.tokens is None else f"{row.tokens:.0f}",
            "beyond" if row.uniform_group_size is None else str(row.uniform_group_size),
        )
    console.print(table)
    best = plan.recommended
    console.print(_difficulty(best))
    for note in plan.notes:
        say(console, f"note: {note}")
    settings = (
        f"allocation.rule={best.rule} allocation.rounds={best.rounds} allocation.stop={best.stop} "
        f"rollout.group_size={best.group_size} rollout.pre_rollouts={best.pre_rollouts}"
    )
    say(console, f"recommended: {settings}")


def _share(value: float, low: float, high: float, sign: str = "") -> str:
    return f"{100 * value:{sign}.1f} ({100 * low:{sign}.1f} to {100 * high:{sign}.1f})"


def _difficulty(row: Row) -> Table:
    table = Table(title=f"{name_of(row)}, G = {row.group_size}, G0 = {row.pre_rollouts}, by success rate")
    for column in (
        "rate up to",
        "prompts %",
        "hit % (share of ∇log p)",
        "mean group",
        "GRPO update / uniform's",
    ):
        table.add_column(column, justify="right")
    for c in row.by_difficulty:
        table.add_row(
            f"{c.up_to:g}",
            f"{100 * c.prompts:.1f}",
            f"{100 * c.hits:.1f}",
            f"{c.size:.1f}",
            f"{c.update:.2f}",
        )
    return table


def draw(plan: Plan, folder: Path) -> Path:
    """Write `plan.png` and `plan.svg`: hits and signal against G, a line for each arm at its best G0."""
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    panels = figure.subplots(1, 2)
    best: dict[str, dict[int, Row]] = {}
    for row in plan.rows:
        lines = best.setdefault(name_of(row), {})
        if row.group_size not in lines or row.hits > lines[row.group_size].hits:
            lines[row.group_size] = row
    for axis, key, title in zip(
        panels, ("hits", "signal"), ("prompts with a hit", "groups with signal"), strict=True
    ):
        for i, (name, rows) in enumerate(best.items()):
            line = sorted(rows.values(), key=lambda r: r.group_size)
            _line(axis, line, key, name, i)
        axis.set(xlabel="G", title=title)
        axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    panels[0].legend(frameon=False, fontsize=7)
    folder.mkdir(parents=True, exist_ok=True)
    save(figure, folder, "plan")
    return folder / "plan.png"


def _line(axis, rows: Sequence[Row], key: str, name: str, i: int) -> None:  # type: ignore[no-untyped-def]
    sizes = [row.group_size for row in rows]
    color, marker = COLORS[i % len(COLORS)], MARKERS[i // len(COLORS) % len(MARKERS)]
    axis.plot(
        sizes, [getattr(row, key) for row in rows], label=name, color=color, marker=marker, markersize=4
    )
    low, high = ([getattr(row, f"{key}_{end}") for row in rows] for end in ("low", "high"))
    axis.fill_between(sizes, low, high, color=color, alpha=0.08)
