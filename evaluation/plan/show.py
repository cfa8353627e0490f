"""Print and draw a plan, or return its JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from hora_rl.allocator.planning.table import Plan, Row
from hora_rl.evaluation.pass_at_k import Estimate
from hora_rl.evaluation.report.figures import COLORS, MARKERS, band, save


def as_json(plan: Plan) -> str:
    """{"rows": [...], "recommended": {...}, "notes": [...]}. Rows have the fields of `Row`."""
    return json.dumps(
        {
            "rows": [asdict(row) for row in plan.rows],
            "recommended": asdict(plan.recommended),
            "notes": list(plan.notes),
        }
    )


def show(plan: Plan) -> None:
    """Print the plan and the settings of the recommended arm."""
    best = plan.recommended
    print(plan)
    print(
        f"recommended: allocation.rule={best.rule} allocation.rounds={best.rounds} "
        f"allocation.stop={best.stop} rollout.group_size={best.group_size} "
        f"rollout.pre_rollouts={best.pre_rollouts}"
    )


def draw(plan: Plan, folder: Path) -> Path:
    """Write `plan.png` and `plan.svg`: hits and signal over G, each arm at its best G0."""
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    panels = figure.subplots(1, 2)
    best: dict[str, dict[int, Row]] = {}
    for row in plan.rows:
        lines = best.setdefault(row.name, {})
        if row.group_size not in lines or row.hits > lines[row.group_size].hits:
            lines[row.group_size] = row
    for axis, key, title in zip(
        panels, ("hits", "signal"), ("prompts with a hit", "groups with signal"), strict=True
    ):
        for i, (name, rows) in enumerate(best.items()):
            style = {"color": COLORS[i % len(COLORS)], "marker": MARKERS[i // len(COLORS) % len(MARKERS)]}
            sizes = sorted(rows)
            points = [_estimate(rows[size], key) for size in sizes]
            band(axis, sizes, points, name, style)
        axis.set(xlabel="G", title=title)
        axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    panels[0].legend(frameon=False, fontsize=7)
    folder.mkdir(parents=True, exist_ok=True)
    save(figure, folder, "plan")
    return folder / "plan.png"


def _estimate(row: Row, key: str) -> Estimate:
    value, low, high = (getattr(row, key + end) for end in ("", "_low", "_high"))
    return Estimate(row.group_size, value, low, high)
