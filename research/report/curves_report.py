"""The report of a study: arms compared on the same seeds by rules that were written down before it ran.

OUT/report.md   rules, comparisons, tables      OUT/curves.png, .svg
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hora_rl.evaluation.report.figures import save
from hora_rl.evaluation.report.tables import markdown_table
from hora_rl.evaluation.run_folders import RunFolderError
from research.report.curves import Compared, Curve, Curves, change, compare, decide
from research.report.figures import curves_figure
from research.report.statistics import Difference, holm
from research.study.cells import Design, Study

NEAR_CEILING = 0.95
"""Level of an arm above which a bounded share leaves little room, and its differences are skewed."""


def report_curves(
    out: Path, study: Study, curves: Curves, notes: Sequence[str] = (), name: str = "report"
) -> Path:
    """Report on the cells of `study` that have curves in `out`; returns NAME.md, which begins with `notes`.

    Raises RunFolderError where no comparison has a seed in common, or the watched set is not there.
    """
    design = study.rules
    compared, explored = decide(curves, design), compare(curves, design, design.exploratory)
    if not compared and not explored:
        raise RunFolderError(
            "\n".join(["no comparison has a finished seed in common: nothing to compare", *notes])
        )
    out.mkdir(parents=True, exist_ok=True)
    decided = {arm for c in compared for arm in (c.arm, c.baseline)}
    shown = {arm: list(of.values()) for arm, of in curves.items() if of and (arm in decided or not decided)}
    save(curves_figure(shown, design), out, "curves" if name == "report" else f"{name}-curves")
    path = out / f"{name}.md"
    lines = _page(study, curves, compared, explored, notes)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _page(
    study: Study, curves: Curves, compared: list[Compared], explored: list[Compared], notes: Sequence[str]
) -> list[str]:
    design = study.rules
    cells = {arm: list(of.values()) for arm, of in curves.items() if of}
    example = next(iter(cells.values()))[0]
    return [
        *(f"# {study.title or study.name}", ""),
        *(line for note in notes for line in (note, "")),
        *_written_down(design, example, len(compared)),
        *_comparisons(compared, design, example),
        *_exploratory(explored, design, example),
        *("", f"## {'End' if example.ends_only else 'Half time and end'}", "", *_moments(compared, explored)),
        *("", *_both(compared, design), *_changes(cells, design, example)),
        *("", "## Arms", ""),
        *(line for name in example.values for line in _levels(cells, name, example.ks(design.pass_at))),
        *_caveats(cells, design),
        *_missing(study, curves),
    ]


def _written_down(design: Design, example: Curve, tests: int) -> list[str]:
    primary = f"Pass@{design.pass_at} at the end"
    if not example.ends_only:
        primary = f"area under Pass@{design.pass_at} over steps"
    return [
        "## Design",
        "",
        *(f"- {h}" for h in design.hypotheses),
        f"- Primary: {primary} on the set `{design.watched}`, differences paired by seed, Student's t, Holm "
        f"over {tests} comparisons.",
        f"- Pass@1 is not inferior when the interval of its {example.kind}'s difference excludes a loss "
        f"of {100 * design.margin:g} points.",
        *(f"- Excluded: {e}" for e in design.exclusions),
        "",
        "## Comparisons",
        "",
        f"In points, with 95% intervals. `matched`: Pass@{design.pass_at} at equal Pass@1. `detectable`: the "
        "difference that so many seeds see with 80% power, given how far these differences spread.",
        "",
    ]


def _comparisons(compared: Sequence[Compared], design: Design, example: Curve) -> list[str]:
    kind = example.kind
    heads = (
        *("arm", "less", "seeds", f"Pass@{design.pass_at}, {kind}", "p (Holm)"),
        *(f"Pass@1, {kind}", "not inferior", "matched", "detectable"),
    )
    return markdown_table(heads, [_row(c, design) for c in compared])


def _row(c: Compared, design: Design) -> tuple[str, ...]:
    matched = points(c.matched) if c.matched else "—"
    kept = "yes" if c.pass_1.low > -design.margin else "not shown"  # one seed has no interval: NaN
    p = "—" if math.isnan(c.corrected) else f"{c.corrected:.2g}"
    return (
        *(c.arm, c.baseline, str(c.primary.seeds), points(c.primary), p),
        *(points(c.pass_1), kept, matched, _seen(c.primary)),
    )


def _exploratory(explored: Sequence[Compared], design: Design, example: Curve) -> list[str]:
    if not explored:
        return []
    note = "Not corrected for their number: they suggest, and establish nothing."
    return ["", "## Exploratory comparisons", "", note, "", *_comparisons(explored, design, example)]


def _moments(compared: Sequence[Compared], explored: Sequence[Compared]) -> list[str]:
    """Differences at half time and at the end; at the end with p values, by Holm over the comparisons."""
    every = [*compared, *explored]
    moments = list(every[0].moments)
    corrected = {m: holm([c.moments[m].p for c in compared]) for m in moments if m[0] == "end"}
    rows = []
    for i, c in enumerate(every):
        cells = [points(c.moments[m]) for m in moments]
        if i < len(compared) and c.primary.seeds > 1:
            p = {m: f" (p = {values[i]:.2g})" for m, values in corrected.items()}
            cells = [f"{cell}{p.get(m, '')}" for cell, m in zip(cells, moments, strict=True)]
        rows.append([c.arm, c.baseline, *cells])
    return markdown_table(["arm", "less", *(f"{when} @{k}" for when, k in moments)], rows)


def _both(compared: Sequence[Compared], design: Design) -> list[str]:
    """At the end, for each comparison: larger Pass@K, and Pass@1 not lower; Holm over the two."""
    rows = []
    for c in compared:
        larger, level = c.moments["end", design.pass_at], c.moments["end", 1]
        p = holm([d.p if d.value > 0 else 1.0 for d in (larger, c.kept)])
        rows.append([c.arm, c.baseline])
        for d, tested in zip((larger, level), p, strict=True):
            rows[-1] += [points(d), "—" if math.isnan(tested) else f"{tested:.2g}", _seen(d)]
    lost = f"Pass@1 not lower by {100 * design.margin:g}"
    heads = ["arm", "less", f"larger Pass@{design.pass_at}", "p", "detectable", lost, "p", "detectable"]
    note = "Both at the end, p by Holm over the two of a comparison (two-sided; 1 on the wrong side):"
    return [note, "", *markdown_table(heads, rows)] if rows else []


def _changes(cells: Mapping[str, Sequence[Curve]], design: Design, example: Curve) -> list[str]:
    """Each arm's Pass@K at the end less that at the earlier moments of a table."""
    ks, name = example.ks(design.pass_at), design.watched
    since = [(f"{when} @{k}", at, k) for when, at in example.moments.items() if when != "end" for k in ks]
    rows = [[arm, *(points(change(of, name, k, at)) for _, at, k in since)] for arm, of in cells.items()]
    heads = ["arm", *(f"since {head}" for head, _, _ in since)]
    return ["", "Changes to the end:", "", *markdown_table(heads, rows)]


def _seen(d: Difference) -> str:
    return "—" if math.isnan(d.detectable) else f"{100 * d.detectable:.1f}"


def _levels(cells: Mapping[str, Sequence[Curve]], name: str, ks: Sequence[int]) -> list[str]:
    """Means over seeds: Pass@K of a set at half time and at the end, and the yield of training."""
    rows = [_level(arm, of, name, ks) for arm, of in cells.items()]
    return [
        f"Pass@K of `{name}`, %; shares of groups with a hit and with signal, %; tokens in thousands; "
        "entropy of a completion in nats:",
        "",
        *markdown_table([*rows[0]], (list(row.values()) for row in rows)),
        "",
    ]


def _level(arm: str, cells: Sequence[Curve], name: str, ks: Sequence[int]) -> dict[str, str]:
    """Column -> value."""

    def mean(figure: str, at: int) -> float:
        return float(np.mean([c.mean(name, figure)[at] for c in cells]))

    def trained(figure: str) -> float:
        return float(np.mean([c.training[figure].mean() for c in cells]))

    first, entropy = cells[0], trained("entropy")
    moments = [(when, at, k) for when, at in first.moments.items() for k in ks]
    levels = {f"{when} @{k}": f"{100 * mean(f'pass@{k}', at):.1f}" for when, at, k in moments}
    steps = len(first.training["tokens"])
    return {
        "arm": arm,
        "seeds": str(len(cells)),
        **levels,
        **{figure: f"{100 * trained(figure):.1f}" for figure in ("hits", "signal")},
        "tokens": f"{trained('tokens') * steps / 1000:.0f}",
        "entropy": "—" if math.isnan(entropy) else f"{entropy:.2f}",
        **({"ways": f"{mean('ways', -1):.2f}"} if "ways" in first.values[name] else {}),
        **({"seconds": f"{trained('seconds') * steps:,.0f}"} if "seconds" in first.training else {}),
    }


def _caveats(cells: Mapping[str, Sequence[Curve]], design: Design) -> list[str]:
    """A warning about the intervals where an arm has come near the ceiling."""
    figure, high = f"pass@{design.pass_at}", []
    for arm, of in cells.items():
        level = float(np.mean([c.mean(design.watched, figure)[-1] for c in of]))
        high += [f"{arm} ({100 * level:.1f}%)"] if level > NEAR_CEILING else []
    if not high:
        return []
    note = "There differences are small and skewed, so intervals hold less than they promise."
    return [f"Near the ceiling at the end: {', '.join(high)}. {note}", ""]


def _missing(study: Study, curves: Curves) -> list[str]:
    counts, planned = {arm: len(curves.get(arm, {})) for arm in study.arms}, len(study.seeds)
    missing = [f"{arm} ({n} of {planned})" for arm, n in counts.items() if n < planned]
    return [f"Seeds missing: {', '.join(missing)}"] if missing else []


def points(d: Difference) -> str:
    """In points, with half of the 95% interval."""
    half = "" if math.isnan(d.low) else f" ± {100 * (d.high - d.low) / 2:.1f}"
    return f"{100 * d.value:+.1f}{half}"
