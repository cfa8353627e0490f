"""`hora plan`: from files and text options to `allocator.plan`, printed and drawn."""

import json
from dataclasses import asdict, replace
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from hora_rl.allocator.planning.forecast import ARMS
from hora_rl.allocator.planning.forecast import plan as plan_of
from hora_rl.allocator.planning.table import Plan, Row
from hora_rl.evaluation.pass_at_k import Estimate
from hora_rl.evaluation.plan.counts import CountsError, read_counts
from hora_rl.evaluation.report.figures import COLORS, MARKERS, band, save


def plan(
    source: Path,
    group_size: str | None,
    pre_rollouts: str | None,
    rules: str | None,
    rounds: str,
    json_: bool,
    out: Path | None,
    shard: int | None = None,
    gradients: str | None = None,
) -> Plan:
    """Read counts, make the plan, print it (as JSON with `json_`), and draw it into `out` if given.

    Options are those of `allocator.plan`, with commas between values. Raises CountsError.
    """
    counts = read_counts(source)
    sizes = _numbers("--group-size", group_size) if group_size else None
    pre = _numbers("--pre-rollouts", pre_rollouts) if pre_rollouts else None
    names, times = rules.split(",") if rules else ARMS, _numbers("--rounds", rounds)
    shared = _gradients(gradients) if gradients else None
    try:
        made = plan_of(
            counts.successes, counts.trials, sizes, pre, names, times, counts.tokens, shard, shared
        )
    except ValueError as error:
        raise CountsError(f"{source}: {error}") from error
    made = replace(made, notes=(*counts.notes, *made.notes))
    if json_:
        print(json.dumps({"verdict": made.verdict, **asdict(made)}))
    else:
        best = made.recommended
        rule = f"allocation.rule={best.rule} allocation.rounds={best.rounds} allocation.stop={best.stop} "
        print(
            f"{made}\nrecommended: {rule if made.worthwhile else 'allocation.rule=uniform '}"
            f"rollout.group_size={best.group_size} rollout.pre_rollouts={best.pre_rollouts}"
        )
    if out is not None:
        path = _draw(made, out)
        if not json_:
            print(f"figure: {path}")
    return made


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise CountsError(f"{option} ({text}): must be whole numbers with commas") from None


def _gradients(text: str) -> tuple[float, float, int]:
    try:
        noise, overlap, prompts = text.split(",")
        return float(noise), float(overlap), int(prompts)
    except ValueError:
        raise CountsError(f"--gradients ({text}): must be r,OVERLAP,PROMPTS, such as 9.5,0.75,64") from None


def _draw(plan: Plan, folder: Path) -> Path:
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
