"""Expected differences on a new task and warm start: those of the studies, pooled over starts.

    python -m research.study.starts research/results

Seeds of one warm start say how its training varies, and nothing of another task or another network. So the
unit is the start: each has one mean difference with its standard error over seeds, and these are pooled with
random effects (variance between starts by DerSimonian and Laird, interval by Hartung, Knapp, Sidik, Jonkman).
"""

import argparse
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from scipy import stats

from hora_rl.evaluation.report.figures import COLORS, MARKERS, save
from hora_rl.evaluation.report.markdown import markdown_table
from research.report.curves import Array, Curve, Curves, Pair
from research.report.statistics import area
from research.study.archive import unpack

STARTS: Mapping[str, tuple[str, ...]] = {
    "facts, first start": ("facts", "facts-arms"),
    "facts, second start": ("facts-again",),
    "pairs, first start": ("pairs", "pairs-arms"),
    "pairs, second start": ("pairs-again",),
    "sums": ("sums",),
    "many": ("many",),
    "SmolLM2, sums": ("smollm2",),
    "SmolLM2, multiples": ("multiples",),
    "SmolLM2, problems": ("problems",),
}
"""Archives of each warm start. A seed that two of them have counts once, with its mean."""
COMPARISONS = (
    ("hora", "grpo"),
    ("likelihood-stop", "likelihood"),
    ("likelihood", "grpo"),
    ("likelihood-stop", "grpo"),
)
METRICS = {
    f"Pass@{k}, {when}": (f"pass@{k}", when)
    for k, when in ((16, "area"), (16, "end"), (256, "end"), (1, "end"))
}
"""Columns of the tables; where problems are sampled there is no Pass@256."""
ARMS = ("grpo", "hora", "max-rl", "likelihood", "likelihood-stop")
RATES = ("", "-fast")


@dataclass(frozen=True, slots=True)
class Pooled:
    """Mean over starts with half its 95% interval, and the 95% interval of a new start's difference."""

    value: float
    half: float
    low: float
    high: float


def pool(values: ArrayLike, errors: ArrayLike) -> Pooled:
    """Random effects over K ≥ 3 starts: `values` with their standard `errors`, in any unit. Raises ValueError
    for fewer."""
    y, s2 = np.asarray(values, float), np.asarray(errors, float) ** 2
    k = len(y)
    if k < 3:
        raise ValueError(f"{k} starts: a prediction needs three")
    fixed = 1 / s2
    q = float(fixed @ (y - fixed @ y / fixed.sum()) ** 2)
    between = max(0.0, (q - (k - 1)) / (fixed.sum() - (fixed**2).sum() / fixed.sum()))
    weight = 1 / (s2 + between)
    mean = float(weight @ y / weight.sum())
    # Never below the error that the starts' own errors give: few starts may agree by chance.
    scale = max(1.0, float(weight @ (y - mean) ** 2) / (k - 1))
    error = math.sqrt(scale / weight.sum())
    reach = float(stats.t.ppf(0.975, k - 2)) * math.sqrt(between + error**2)
    return Pooled(mean, float(stats.t.ppf(0.975, k - 1)) * error, mean - reach, mean + reach)


Watched = tuple[Curves, str]
Studies = Sequence[Watched]
"""Curves of the studies of one warm start, with the watched set of each."""
Row = tuple[Array, Array, Pooled]
"""Means (K,) and standard errors (K,) of the starts, and the pool."""
Table = Mapping[Pair, Mapping[str, Row]]


def load(folder: Path, name: str) -> Watched:
    archive = unpack(folder / f"{name}.json.xz")
    return archive.curves(), archive.study.design.watched


def differences(studies: Studies, pair: Pair, metric: str) -> Array:
    """Paired differences (S,) in points on the watched set, one a seed."""
    figure, when = METRICS[metric]
    by_seed: dict[int, list[float]] = {}
    for curves, watched in studies:
        mine, theirs = (curves.get(arm, {}) for arm in pair)
        for seed in mine.keys() & theirs.keys():
            if figure not in mine[seed].values[watched]:
                continue
            both = [c.mean(watched, figure) for c in (mine[seed], theirs[seed])]
            one, two = (values[-1] if when == "end" else area(mine[seed].steps, values) for values in both)
            by_seed.setdefault(seed, []).append(100 * float(one - two))
    return np.array([np.mean(found) for _, found in sorted(by_seed.items())])


def table_of(starts: Sequence[Studies]) -> Table:
    """The row of each comparison and metric."""

    def row(pair: Pair, metric: str) -> Row:
        found = [d for studies in starts if len(d := differences(studies, pair, metric))]
        means, errors = np.array([d.mean() for d in found]), np.array([stats.sem(d) for d in found])
        return means, errors, pool(means, errors)

    return {pair: {metric: row(pair, metric) for metric in METRICS} for pair in COMPARISONS}


def markdown(table: Table) -> str:
    rows = [
        [f"`{arm}` − `{baseline}`"]
        + [f"{p.value:+.1f} ± {p.half:.1f} ({p.low:+.1f} to {p.high:+.1f})" for _, _, p in row.values()]
        for (arm, baseline), row in table.items()
    ]
    head, rule, *lines = markdown_table(["arm − baseline", *METRICS], rows, numbers=True)
    text = re.sub(r"[+-]0\.0\b", "0.0", "\n".join(lines))
    return "\n".join([head, rule, re.sub(r"-(?=\d)", "−", text)])


def level(studies: Studies, arm: str, metric: str) -> float:
    """The arm's mean over seeds in percent; NaN where the metric is not measured."""
    figure, when = METRICS[metric]
    found = []
    for curves, watched in studies:
        for curve in curves[arm].values():
            if figure in curve.values[watched]:
                values = curve.mean(watched, figure)
                found.append(float(values[-1] if when == "end" else area(curve.steps, values)))
    return 100 * float(np.mean(found)) if found else np.nan


def tokens(studies: Studies, arm: str) -> float:
    """Completion tokens of the arm over those of grpo, in percent more, on the same seeds."""
    totals = [
        [
            curves[name][seed].training["tokens"].sum()
            for curves, _ in studies
            for seed in sorted(curves["grpo"])
        ]
        for name in (arm, "grpo")
    ]
    return 100 * float(np.sum(totals[0]) / np.sum(totals[1]) - 1)


def summary(starts: Sequence[Studies], table: Table) -> str:
    """The levels of grpo, means over the starts, and what `hora` and `likelihood-stop` add to them."""
    levels = [np.nanmean([level(studies, "grpo", metric) for studies in starts]) for metric in METRICS]
    rows = [["`grpo`", *(f"{x:.1f}" for x in levels), "", "0"]]
    for arm, barriers in (("hora", "1"), ("likelihood-stop", "4")):
        pooled = [p for _, _, p in table[arm, "grpo"].values()]
        more = np.mean([tokens(studies, arm) for studies in starts])
        cells = [f"{p.value:+.1f} ± {p.half:.1f}" for p in pooled]
        rows.append([f"`{arm}`", *cells, f"{more:+.1f}%", barriers])
    heads = ["arm", *METRICS, "tokens", "barriers a shard"]
    return "\n".join(markdown_table(heads, rows, numbers=True)).replace("| -", "| −")


def forest(table: Table, names: Sequence[str]) -> Figure:
    """Each start's difference of the area under Pass@16, and below them the pool with the interval of a new
    start."""
    figure = Figure(figsize=(8.4, 0.4 + 0.26 * len(table) * (len(names) + 2)), layout="constrained")
    axis = figure.subplots()
    labels, y = [], 0
    for (pair, row), color in zip(table.items(), COLORS, strict=False):
        means, errors, pooled = row["Pass@16, area"]
        for name, mean, error in zip(names, means, errors, strict=True):
            axis.errorbar(mean, y, xerr=2 * error, fmt="o", color=color, markersize=4, linewidth=1.2)
            labels.append((y, name))
            y += 1
        axis.plot([pooled.low, pooled.high], [y, y], color="#808080", linewidth=1, linestyle=":")
        axis.errorbar(pooled.value, y, xerr=pooled.half, fmt="D", color="black", markersize=5, linewidth=3)
        labels.append((y, f"{pair[0]} − {pair[1]}: pooled"))
        y += 2
    axis.axvline(0, color="#808080", linewidth=1)
    axis.set_yticks([at for at, _ in labels], [text for _, text in labels], fontsize=8)
    axis.set_ylim(y - 1.5, -0.8)
    axis.set(xlabel="area under Pass@16 over the run, difference in points; dotted: 95% of new starts")
    return figure


def frontier(studies: Mapping[str, tuple[Curves, str]]) -> Figure:
    """Where each arm ends, at the studies' learning rate and at three times it: Pass@16 against Pass@1."""
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    for axis, (title, (curves, watched)) in zip(figure.subplots(1, 2), studies.items(), strict=True):
        for arm, color in zip(ARMS, COLORS, strict=False):
            ends = [_end(curves[arm + rate], watched) for rate in RATES if curves.get(arm + rate)]
            axis.plot(*zip(*ends, strict=True), color=color, linewidth=1, label=arm)
            for at, marker in zip(ends, MARKERS, strict=False):
                axis.plot(*at, color=color, marker=marker, markersize=6)
        axis.set(xlabel="Pass@1 at the end (%)", ylabel="Pass@16 at the end (%)", title=title)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8)
    return figure


def _end(cells: Mapping[int, Curve], watched: str) -> Array:
    """Mean Pass@1 and Pass@16 (2,) over seeds after the last step, in percent."""
    return 100 * np.mean(
        [[c.mean(watched, f"pass@{k}")[-1] for k in (1, 16)] for c in cells.values()], axis=0
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    studies = {name: load(folder, name) for names in STARTS.values() for name in names}
    table = table_of([[studies[name] for name in names] for names in STARTS.values()])
    print(summary([[studies[name] for name in names] for names in STARTS.values()], table), "\n")
    print(markdown(table))
    save(forest(table, list(STARTS)), folder, "starts-forest")
    ends = {"facts": studies["facts-arms"], "pairs": studies["pairs-arms"]}
    save(frontier(ends), folder, "starts-frontier")


if __name__ == "__main__":
    main()
