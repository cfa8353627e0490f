"""Expected differences on a new task and warm start: those of the studies, pooled over starts.

    python -m research.study.starts research/results

Seeds of one warm start say how its training varies, and nothing of another task or another network. So the
unit is the start: each has one mean difference with its standard error over seeds, and these are pooled with
random effects (variance between starts by DerSimonian and Laird, interval by Hartung, Knapp, Sidik, Jonkman).
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from hora_rl.evaluation.report.tables import markdown_table
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
Table = Mapping[Pair, Mapping[str, tuple[Array, Pooled]]]
"""Means (K,) of the starts and their pool, for each comparison and metric."""


def load(folder: Path, name: str) -> Watched:
    archive = unpack(folder / f"{name}.json.xz")
    return archive.curves(), archive.study.design.watched


def summarised(curve: Curve, watched: str, metric: str) -> float:
    """The metric of one cell in percent."""
    figure, when = METRICS[metric]
    values = curve.mean(watched, figure)
    return 100 * float(values[-1] if when == "end" else area(curve.steps, values))


def differences(studies: Studies, pair: Pair, metric: str) -> Array:
    """Paired differences (S,) in points on the watched set, one a seed."""
    figure, _ = METRICS[metric]
    by_seed: dict[int, list[float]] = {}
    for curves, watched in studies:
        mine, theirs = (curves.get(arm, {}) for arm in pair)
        for seed in mine.keys() & theirs.keys():
            if figure not in mine[seed].values[watched]:
                continue
            levels = [summarised(curve, watched, metric) for curve in (mine[seed], theirs[seed])]
            by_seed.setdefault(seed, []).append(levels[0] - levels[1])
    return np.array([np.mean(of_seed) for _, of_seed in sorted(by_seed.items())])


def table_of(starts: Sequence[Studies]) -> Table:
    table: dict[Pair, dict[str, tuple[Array, Pooled]]] = {pair: {} for pair in COMPARISONS}
    for pair, row in table.items():
        for metric in METRICS:
            measured = [d for studies in starts if len(d := differences(studies, pair, metric))]
            means = np.array([d.mean() for d in measured])
            row[metric] = (means, pool(means, [stats.sem(d) for d in measured]))
    return table


def markdown(table: Table) -> str:
    """The pools, and in how many starts the first metric's difference is positive."""
    rows = []
    for (arm, baseline), row in table.items():
        pools = [f"{p.value:+.1f} ± {p.half:.1f} ({p.low:+.1f} to {p.high:+.1f})" for _, p in row.values()]
        means, _ = next(iter(row.values()))
        rows.append([f"`{arm}` − `{baseline}`", *pools, f"{(means > 0).sum()} of {len(means)}"])
    return "\n".join(markdown_table(["arm − baseline", *METRICS, "area above 0"], rows, numbers=True))


def level(studies: Studies, arm: str, metric: str) -> float:
    """The arm's mean over seeds in percent; NaN where the metric is not measured."""
    cells = [(curve, watched) for curves, watched in studies for curve in curves[arm].values()]
    measured = [(c, watched) for c, watched in cells if METRICS[metric][0] in c.values[watched]]
    return float(np.mean([summarised(*cell, metric) for cell in measured])) if measured else np.nan


def tokens(studies: Studies, arm: str) -> float:
    """Completion tokens of the arm over those of grpo, in percent more, on the same seeds."""
    mine, grpo = (
        sum(curves[name][seed].training["tokens"].sum() for curves, _ in studies for seed in curves["grpo"])
        for name in (arm, "grpo")
    )
    return 100 * float(mine / grpo - 1)


def summary(starts: Sequence[Studies], table: Table) -> str:
    """The levels of grpo, means over the starts, and what `hora` and `likelihood-stop` add to them."""
    levels = [np.nanmean([level(studies, "grpo", metric) for studies in starts]) for metric in METRICS]
    rows = [["`grpo`", *(f"{x:.1f}" for x in levels), "", "0"]]
    for arm, barriers in (("hora", "1"), ("likelihood-stop", "4")):
        pooled = [p for _, p in table[arm, "grpo"].values()]
        more = np.mean([tokens(studies, arm) for studies in starts])
        cells = [f"{p.value:+.1f} ± {p.half:.1f}" for p in pooled]
        rows.append([f"`{arm}`", *cells, f"{more:+.1f}%", barriers])
    heads = ["arm", *METRICS, "tokens", "barriers a shard"]
    return "\n".join(markdown_table(heads, rows, numbers=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    starts = [[load(folder, name) for name in names] for names in STARTS.values()]
    table = table_of(starts)
    print(summary(starts, table), "\n")
    print(markdown(table))


if __name__ == "__main__":
    main()
