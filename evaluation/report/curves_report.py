"""The report of a study of curves: arms compared on the same seeds by rules that were written down before it
ran.

OUT/report.md   rules, comparisons, tables      OUT/*.png, *.svg   curves, frontier, forest, power
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evaluation.report.curves_figures import forest_figure, frontier_figure, pass_rates_figure, power_figure
from evaluation.report.figures import save
from evaluation.report.paired import (
    Difference,
    area,
    at_matched,
    detectable,
    holm,
    not_inferior,
    paired_difference,
)
from evaluation.run_folders import RunFolderError

Array = NDArray[np.float64]
Curves = Mapping[str, Mapping[int, "Curve"]]


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides, written down before the study ran: see `deploy.study.cells.Design`."""

    comparisons: tuple[tuple[str, str], ...]
    hypotheses: tuple[str, ...]
    watched: str
    pass_at: int
    margin: float
    exclusions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """One cell: `values[set][figure]` (T,) at `steps` (T,), and `training[figure]` per optimizer step."""

    steps: Array
    values: Mapping[str, Mapping[str, Array]]
    training: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Compared:
    """One comparison: the primary metric, its p-value corrected by Holm, Pass@1's area, and how the
    differences spread."""

    arm: str
    baseline: str
    primary: Difference
    corrected: float
    pass_1: Difference
    matched: Difference | None
    deviation: float


def write_curves_report(out: Path, title: str, cells: Mapping[str, Mapping[int, Path]], rules: Rules) -> Path:
    """Report on the finished cells (arm -> seed -> file of curves) in `out`; returns report.md.

    Cells without curves are named as missing. Raises RunFolderError where no comparison has a seed in common,
    or the watched set is not there.
    """
    curves = {
        arm: {seed: load_curve(path) for seed, path in seeds.items() if path.exists()}
        for arm, seeds in cells.items()
    }
    missing = [f"{a}-seed{s}" for a, seeds in cells.items() for s, path in seeds.items() if not path.exists()]
    compared = compare(curves, rules)
    out.mkdir(parents=True, exist_ok=True)
    drawn = {
        "curves": pass_rates_figure(_watched(curves, rules), rules.pass_at),
        "frontier": frontier_figure(_watched(curves, rules), rules.pass_at),
        "forest": forest_figure([(f"{c.arm} − {c.baseline}", c.primary) for c in compared]),
        "power": power_figure([c.deviation for c in compared if c.deviation > 0.0]),
    }
    for name, figure in drawn.items():
        save(figure, out, name)
    path = out / "report.md"
    path.write_text("\n".join(_page(title, rules, curves, compared, missing)) + "\n", encoding="utf-8")
    return path


def load_curve(path: Path) -> Curve:
    """Raises RunFolderError for a file that is no curve."""
    try:
        found = json.loads(path.read_text())
        values = {name: _columns(points) for name, points in found["curves"].items()}
        steps = next(iter(values.values()))["step"]
        return Curve(steps, values, _columns(found["steps"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{path}: holds no curves ({type(error).__name__}: {error})") from None


def compare(curves: Curves, rules: Rules) -> list[Compared]:
    """Every comparison of `rules`, on the seeds that both arms have."""
    found = [_compared(curves, rules, arm, baseline) for arm, baseline in rules.comparisons]
    corrected = holm({str(i): c.primary.p for i, c in enumerate(found) if c.primary.seeds > 1})
    return [replace(c, corrected=corrected.get(str(i), math.nan)) for i, c in enumerate(found)]


def _compared(curves: Curves, rules: Rules, arm: str, baseline: str) -> Compared:
    seeds = sorted(curves[arm].keys() & curves[baseline].keys())
    if not seeds:
        raise RunFolderError(f"{arm} and {baseline} have no finished seed in common: nothing to compare")
    mine, theirs = ([curves[a][s] for s in seeds] for a in (arm, baseline))
    areas = {k: [[_area(c, rules, k) for c in side] for side in (mine, theirs)] for k in (1, rules.pass_at)}
    spread = np.diff(areas[rules.pass_at], axis=0).std(ddof=1) if len(seeds) > 1 else 0.0
    return Compared(
        arm,
        baseline,
        primary=paired_difference(*areas[rules.pass_at]),
        corrected=math.nan,
        pass_1=paired_difference(*areas[1]),
        matched=_matched(mine, theirs, rules),
        deviation=float(spread),
    )


def _matched(mine: Sequence[Curve], theirs: Sequence[Curve], rules: Rules) -> Difference | None:
    """Pass@K where Pass@1 is the same: the level that both sides of every seed reach, the lowest of their
    highest."""
    sides = [[_figure(c, rules, 1) for c in side] for side in (mine, theirs)]
    level = min(float(v.max()) for side in sides for v in side)
    read = [
        [at_matched(level, _figure(c, rules, 1), _figure(c, rules, rules.pass_at)) for c in side]
        for side in (mine, theirs)
    ]
    return None if np.isnan(read).any() else paired_difference(*read)


def _area(curve: Curve, rules: Rules, k: int) -> float:
    return area(curve.steps, _figure(curve, rules, k))


def _figure(curve: Curve, rules: Rules, k: int) -> Array:
    if rules.watched not in curve.values:
        raise RunFolderError(
            f"design.watched ({rules.watched}) is none of the sets ({', '.join(curve.values)})"
        )
    return curve.values[rules.watched][f"pass@{k}"]


def _watched(curves: Curves, rules: Rules) -> dict[str, dict[str, Array]]:
    """Of each arm: `step` (T,), and Pass@1 and Pass@K (S, T) on the watched set."""
    return {
        arm: {
            "step": next(iter(seeds.values())).steps,
            **{
                f"pass@{k}": np.stack([_figure(c, rules, k) for c in seeds.values()])
                for k in (1, rules.pass_at)
            },
        }
        for arm, seeds in curves.items()
        if seeds
    }


def _columns(points: Sequence[Mapping[str, float]]) -> dict[str, Array]:
    return {name: np.array([p[name] for p in points], dtype=np.float64) for name in points[0]}


def _page(
    title: str, rules: Rules, curves: Curves, compared: Sequence[Compared], missing: Sequence[str]
) -> list[str]:
    seeds = sorted({len(s) for s in curves.values()})
    lines = [f"# {title}", "", "## Written down before it ran", ""]
    lines += [f"- {h}" for h in rules.hypotheses]
    lines += [
        f"- Primary: area under Pass@{rules.pass_at} over steps on the set `{rules.watched}`, differences "
        f"paired by seed, Student's t, Holm over {len(rules.comparisons)} comparisons.",
        "- Pass@1 is not inferior when the interval of its area's difference excludes a loss of "
        f"{100 * rules.margin:g} points.",
        *(f"- Excluded: {e}" for e in rules.exclusions),
        "",
        "## Comparisons",
        "",
        f"In points, with 95% intervals; {' or '.join(map(str, seeds))} seeds an arm. `matched`: "
        f"Pass@{rules.pass_at} at equal Pass@1.",
        "",
        f"| arm | less | Pass@{rules.pass_at}, area | p (Holm) | Pass@1, area | not inferior | matched | "
        "detectable (80%) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [_row(c, rules) for c in compared]
    lines += ["", "## Arms", "", *_levels(curves, rules)]
    return [*lines, "", f"Missing: {', '.join(missing)}"] if missing else lines


def _row(c: Compared, rules: Rules) -> str:
    matched = _points(c.matched) if c.matched else "—"
    least = f"{100 * detectable(c.deviation, c.primary.seeds):.1f}" if c.primary.seeds > 1 else "—"
    kept = "yes" if not_inferior(c.pass_1, rules.margin) else "not shown"
    return (
        f"| {c.arm} | {c.baseline} | {_points(c.primary)} | {c.corrected:.3g} | {_points(c.pass_1)} | {kept} "
        f"| {matched} | {least} |"
    )


def _levels(curves: Curves, rules: Rules) -> list[str]:
    """Means over seeds: Pass@K of every set at half time and at the end, and what training sampled."""
    ks = (1, rules.pass_at, 256)
    sets = list(next(c for seeds in curves.values() for c in seeds.values()).values)
    lines = []
    for name in sets:
        heads = [f"{when} @{k}" for when in ("half", "end") for k in ks]
        lines += [
            f"Pass@K of `{name}`, %, and the share of groups with a hit and with signal:",
            "",
            f"| arm | {' | '.join(heads)} | hits | signal | ways |",
            "|---" * (len(heads) + 4) + "|",
        ]
        lines += [_level(arm, list(seeds.values()), name, ks) for arm, seeds in curves.items() if seeds]
        lines.append("")
    return lines


def _level(arm: str, cells: Sequence[Curve], name: str, ks: Sequence[int]) -> str:
    def mean(figure: str, at: int) -> float:
        return 100 * float(np.mean([c.values[name][figure][at] for c in cells]))

    half = len(cells[0].steps) // 2
    values = [f"{mean(f'pass@{k}', at):.1f}" for at in (half, -1) for k in ks]
    trained = [
        f"{100 * float(np.mean([c.training[f].mean() for c in cells])):.1f}" for f in ("hits", "signal")
    ]
    return f"| {arm} | {' | '.join([*values, *trained])} | {mean('ways', -1) / 100:.2f} |"


def _points(d: Difference) -> str:
    half = f" ± {100 * (d.high - d.low) / 2:.1f}" if d.seeds > 1 else ""
    return f"{100 * d.value:+.1f}{half}"
