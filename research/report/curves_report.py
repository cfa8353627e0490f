"""The report of a study of curves: arms compared on the same seeds by rules that were written down before it
ran.

OUT/report.md   rules, comparisons, tables      OUT/*.png, *.svg   curves, frontier, forest, power
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hora_rl.evaluation.report.figures import save
from hora_rl.evaluation.report.markdown import markdown_table
from hora_rl.evaluation.run_folders import RunFolderError
from research.report.curves import (
    Array,
    Compared,
    Curve,
    Curves,
    Rules,
    compare,
    explore,
    figure_of,
    load_curve,
)
from research.report.curves_figures import (
    forest_figure,
    frontier_figure,
    pass_rates_figure,
    power_figure,
)
from research.report.paired import Difference, detectable, not_inferior

NEAR_CEILING = 0.95
"""Level of the baseline above which a bounded share leaves little room, and its differences are skewed."""


def write_curves_report(out: Path, title: str, cells: Mapping[str, Mapping[int, Path]], rules: Rules) -> Path:
    """Report on the finished cells (arm -> seed -> file of curves) in `out`; returns report.md.

    Cells without curves are named as missing. Raises RunFolderError where no comparison has a seed in common,
    or the watched set is not there.
    """
    curves = {
        arm: {seed: load_curve(path) for seed, path in seeds.items() if path.exists()}
        for arm, seeds in cells.items()
    }
    planned = {arm: len(seeds) for arm, seeds in cells.items()}
    return report_curves(out, title, curves, planned, rules)


def report_curves(
    out: Path, title: str, curves: Curves, planned: Mapping[str, int], rules: Rules, name: str = "report"
) -> Path:
    """The same on curves at hand. `planned` is the number of seeds of each arm; files are called after
    `name`."""
    compared, explored = compare(curves, rules), explore(curves, rules)
    if not compared and not explored:
        raise RunFolderError("no comparison has a finished seed in common: nothing to compare")
    out.mkdir(parents=True, exist_ok=True)
    prefix = "" if name == "report" else f"{name}-"
    decided = {arm for c in compared for arm in (c.arm, c.baseline)}
    shown = {arm: seeds for arm, seeds in curves.items() if arm in decided} if decided else curves
    drawn = {
        "curves": pass_rates_figure(_watched(shown, rules), rules.pass_at),
        "frontier": frontier_figure(_watched(shown, rules), rules.pass_at),
        "forest": forest_figure(
            [(_title(c), c.primary) for c in compared], [(_title(c), c.primary) for c in explored]
        ),
    }
    if spreads := [c.deviation for c in compared if c.deviation > 0.0]:
        drawn["power"] = power_figure(spreads)
    for kind, figure in drawn.items():
        save(figure, out, f"{prefix}{kind}")
    path = out / f"{name}.md"
    lines = _page(title, rules, curves, (compared, explored), planned)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _title(c: Compared) -> str:
    return f"{c.arm} − {c.baseline}"


def _watched(curves: Curves, rules: Rules) -> dict[str, dict[str, Array]]:
    """Of each arm: `step` (T,), and Pass@1 and Pass@K (S, T) on the watched set."""
    return {
        arm: {
            "step": next(iter(seeds.values())).steps,
            **{
                f"pass@{k}": np.stack([figure_of(c, rules, k) for c in seeds.values()])
                for k in (1, rules.pass_at)
            },
        }
        for arm, seeds in curves.items()
        if seeds
    }


def _page(
    title: str,
    rules: Rules,
    curves: Curves,
    found: tuple[Sequence[Compared], Sequence[Compared]],
    planned: Mapping[str, int],
) -> list[str]:
    compared, explored = found
    lines = [f"# {title}", "", "## Written down before it ran", ""]
    lines += [f"- {h}" for h in rules.hypotheses]
    lines += [
        f"- Primary: area under Pass@{rules.pass_at} over steps on the set `{rules.watched}`, differences "
        f"paired by seed, Student's t, Holm over {len(compared)} comparisons.",
        "- Pass@1 is not inferior when the interval of its area's difference excludes a loss of "
        f"{100 * rules.margin:g} points.",
        *(f"- Excluded: {e}" for e in rules.exclusions),
        "",
        "## Comparisons",
        "",
        f"In points, with 95% intervals. `matched`: Pass@{rules.pass_at} at equal Pass@1. `detectable`: the "
        "difference that so many seeds see with 80% power, given how far these differences spread.",
        "",
        *_comparisons(compared, rules),
    ]
    if explored:
        lines += [
            "",
            "## Exploratory comparisons",
            "",
            "Not corrected for their number: they suggest, and establish nothing.",
            "",
            *_comparisons(explored, rules),
        ]
    every = [*compared, *explored]
    lines += ["", "## Half time and end", "", *_moments(every, rules)]
    if every[0].sets:
        lines += ["", "## Other sets, areas", "", *_other_sets(every, rules)]
    lines += ["", "## Arms", "", *_levels(curves, rules)]
    return [*lines, *_caveats(curves, rules), *_missing(curves, planned, rules)]


def _comparisons(compared: Sequence[Compared], rules: Rules) -> list[str]:
    k = rules.pass_at
    heads = (
        *("arm", "less", "seeds", f"Pass@{k}, area", "p (Holm)"),
        *("Pass@1, area", "not inferior", "matched", "detectable"),
    )
    return markdown_table(heads, [_row(c, rules) for c in compared])


def _row(c: Compared, rules: Rules) -> tuple[str, ...]:
    matched = points(c.matched) if c.matched else "—"
    least = f"{100 * detectable(c.deviation, c.primary.seeds):.1f}" if c.primary.seeds > 1 else "—"
    kept = "yes" if not_inferior(c.pass_1, rules.margin) else "not shown"
    p = "—" if np.isnan(c.corrected) else f"{c.corrected:.2g}"
    return (
        *(c.arm, c.baseline, str(c.primary.seeds), points(c.primary), p),
        *(points(c.pass_1), kept, matched, least),
    )


def _moments(compared: Sequence[Compared], rules: Rules) -> list[str]:
    keys = [(when, k) for when in ("half", "end") for k in (1, rules.pass_at, 256)]
    heads = ["arm", "less", *(f"{when} @{k}" for when, k in keys)]
    rows = ([c.arm, c.baseline, *(points(c.moments[key]) for key in keys)] for c in compared)
    return markdown_table(heads, rows)


def _other_sets(compared: Sequence[Compared], rules: Rules) -> list[str]:
    names = list(compared[0].sets)
    heads = ["arm", "less", *(f"{name} @{k}" for name in names for k in (1, rules.pass_at))]
    rows = ([c.arm, c.baseline, *(points(d) for n in names for d in c.sets[n])] for c in compared)
    return markdown_table(heads, rows)


def _levels(curves: Curves, rules: Rules) -> list[str]:
    """Means over seeds: Pass@K of every set at half time and at the end, and what training sampled."""
    ks = (1, rules.pass_at, 256)
    sets = list(next(c for seeds in curves.values() for c in seeds.values()).values)
    moments = (f"{when} @{k}" for when in ("start", "half", "end") for k in ks)
    heads = ["arm", "seeds", *moments, "hits", "signal", "tokens", "entropy", "ways"]
    lines = []
    for name in sets:
        rows = [_level(arm, list(seeds.values()), name, ks) for arm, seeds in curves.items() if seeds]
        lines += [
            f"Pass@K of `{name}`, %; shares of groups with a hit and with signal, %; tokens in thousands; "
            "entropy of a completion in nats:",
            "",
            *markdown_table(heads, rows),
            "",
        ]
    return lines


def _level(arm: str, cells: Sequence[Curve], name: str, ks: Sequence[int]) -> list[str]:
    def mean(figure: str, at: int) -> float:
        return 100 * float(np.mean([c.values[name][figure][at] for c in cells]))

    def trained(figure: str) -> float:
        return float(np.mean([c.training[figure].mean() for c in cells]))

    half = len(cells[0].steps) // 2
    values = [f"{mean(f'pass@{k}', at):.1f}" for at in (0, half, -1) for k in ks]
    shares = [f"{100 * trained(f):.1f}" for f in ("hits", "signal")]
    steps = len(cells[0].training["tokens"])
    entropy = trained("entropy")
    spent = [f"{trained('tokens') * steps / 1000:.0f}", "—" if np.isnan(entropy) else f"{entropy:.2f}"]
    return [arm, str(len(cells)), *values, *shares, *spent, f"{mean('ways', -1) / 100:.2f}"]


def _caveats(curves: Curves, rules: Rules) -> list[str]:
    """What the intervals do not say, where an arm has come near the ceiling."""
    high = [
        f"{arm} ({100 * level:.1f}%)"
        for arm, seeds in curves.items()
        if seeds
        and (level := float(np.mean([figure_of(c, rules, rules.pass_at)[-1] for c in seeds.values()])))
        > NEAR_CEILING
    ]
    if not high:
        return []
    return [
        f"Near the ceiling at the end: {', '.join(high)}. There Pass@{rules.pass_at} has little room left, "
        "differences at the end are small whatever the arms do, and intervals by Student's t hold less than "
        "they promise because differences are skewed. The area over all steps and half time say more.",
        "",
    ]


def _missing(curves: Curves, planned: Mapping[str, int], rules: Rules) -> list[str]:
    none = [arm for arm in planned if not curves.get(arm)]
    some = [
        f"{arm} ({len(curves[arm])} of {n})"
        for arm, n in planned.items()
        if curves.get(arm) and len(curves[arm]) < n
    ]
    lines = [f"Not run: {', '.join(none)}"] if none else []
    return [*lines, *([f"Seeds missing: {', '.join(some)}"] if some else [])]


def points(d: Difference) -> str:
    """In points, with half of the 95% interval."""
    half = f" ± {100 * (d.high - d.low) / 2:.1f}" if d.seeds > 1 else ""
    return f"{100 * d.value:+.1f}{half}"
