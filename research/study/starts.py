"""What to expect of a new task and warm start: differences of the studies, pooled over starts.

    python -m research.study.starts research/results

Seeds of one warm start say how its training varies, and nothing of another task or another network. So the
unit is the start: each has one mean difference with its standard error over seeds, and these are pooled with
random effects (variance between starts by DerSimonian and Laird, interval by Hartung, Knapp, Sidik, Jonkman).
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from hora_rl.evaluation.report.figures import COLORS, MARKERS, save
from research.report.curves import Array, Curve
from research.report.statistics import area
from research.study.archive import unpack

STARTS: Mapping[str, tuple[str, ...]] = {
    "facts, first start": ("facts", "facts-arms"),
    "facts, second start": ("facts-again",),
    "pairs, first start": ("pairs", "pairs-arms"),
    "pairs, second start": ("pairs-again",),
    "sums": ("sums",),
    "many": ("many",),
}
"""Archives of each warm start. A seed that two of them have counts once, with its mean."""
COMPARISONS = (
    ("hora", "grpo"),
    ("likelihood-stop", "likelihood"),
    ("likelihood", "grpo"),
    ("likelihood-stop", "grpo"),
)
METRICS: Mapping[str, Callable[[Curve, str], float]] = {
    "Pass@16, area": lambda c, name: float(area(c.steps, c.mean(name, "pass@16"))),
    "Pass@16, end": lambda c, name: float(c.mean(name, "pass@16")[-1]),
    "Pass@1, area": lambda c, name: float(area(c.steps, c.mean(name, "pass@1"))),
    "Pass@1, end": lambda c, name: float(c.mean(name, "pass@1")[-1]),
}
RATES = ("", "-fast")


@dataclass(frozen=True, slots=True)
class Pooled:
    """Mean over starts with half its 95% interval, and the 95% interval of a new start's difference."""

    value: float
    half: float
    low: float
    high: float


def pool(values: Sequence[float], errors: Sequence[float]) -> Pooled:
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


class Start:
    """The cells of one warm start, from its archives."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._archives = [unpack(folder / f"{name}.json.xz") for name in names]

    def differences(self, arm: str, baseline: str, metric: str) -> Array:
        """Paired differences (S,) in points on the watched set, one a seed."""
        by_seed: dict[int, list[float]] = {}
        for archive in self._archives:
            curves, watched = archive.curves(), archive.study.design.watched
            mine, theirs = curves.get(arm, {}), curves.get(baseline, {})
            for seed in mine.keys() & theirs.keys():
                value = METRICS[metric](mine[seed], watched) - METRICS[metric](theirs[seed], watched)
                by_seed.setdefault(seed, []).append(100 * value)
        return np.array([np.mean(found) for _, found in sorted(by_seed.items())])


Table = Mapping[tuple[str, str], Mapping[str, tuple[Array, Array, Pooled]]]


def table_of(starts: Mapping[str, Start]) -> Table:
    """For each comparison and metric: means (K,) and standard errors (K,) of the starts, and the pool."""
    made: dict[tuple[str, str], dict[str, tuple[Array, Array, Pooled]]] = {}
    for pair in COMPARISONS:
        made[pair] = {}
        for metric in METRICS:
            found = [start.differences(*pair, metric) for start in starts.values()]
            means = np.array([d.mean() for d in found])
            errors = np.array([stats.sem(d) for d in found])
            made[pair][metric] = (means, errors, pool(means.tolist(), errors.tolist()))
    return made


def markdown(table: Table) -> str:
    lines = ["| arm − baseline | " + " | ".join(METRICS) + " |", "|---|" + "---:|" * len(METRICS)]
    for (arm, baseline), row in table.items():
        cells = [f"{p.value:+.1f} ± {p.half:.1f} ({p.low:+.1f} to {p.high:+.1f})" for _, _, p in row.values()]
        lines.append(f"| `{arm}` − `{baseline}` | " + " | ".join(cells) + " |")
    text = "\n".join(lines)
    return (
        re.sub(r"[+-]0\.0\b", "0.0", text).replace("-", "−").replace("|−−−", "|---").replace("−−−:", "---:")
    )


def forest(table: Table, names: Sequence[str]) -> Figure:
    """Each start's difference of the area under Pass@16, and below them the pool with the interval of a new
    start."""
    figure = Figure(figsize=(8.4, 0.4 + 0.26 * len(table) * (len(names) + 2)), layout="constrained")
    axis = figure.subplots()
    labels, y = [], 0
    for i, (pair, row) in enumerate(table.items()):
        means, errors, pooled = row["Pass@16, area"]
        for name, mean, error in zip(names, means, errors, strict=True):
            axis.plot([mean - 2 * error, mean + 2 * error], [y, y], color=COLORS[i], linewidth=1.2)
            axis.plot(mean, y, "o", color=COLORS[i], markersize=4)
            labels.append((y, name))
            y += 1
        axis.plot([pooled.low, pooled.high], [y, y], color="#808080", linewidth=1, linestyle=":")
        reach = [pooled.value - pooled.half, pooled.value + pooled.half]
        axis.plot(reach, [y, y], color="black", linewidth=3)
        axis.plot(pooled.value, y, "D", color="black", markersize=5)
        labels.append((y, f"{pair[0]} − {pair[1]}: pooled"))
        y += 2
    axis.axvline(0, color="#808080", linewidth=1)
    axis.set_yticks([at for at, _ in labels], [text for _, text in labels], fontsize=8)
    axis.set_ylim(y - 1.5, -0.8)
    axis.set(xlabel="area under Pass@16 over 60 steps, difference in points; dotted: 95% of new starts")
    return figure


def frontier(folder: Path, studies: Sequence[str], arms: Sequence[str]) -> Figure:
    """Where each arm ends, at the studies' learning rate and at three times it: Pass@16 against Pass@1."""
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    for axis, study in zip(figure.subplots(1, len(studies)), studies, strict=True):
        archive = unpack(folder / f"{study}.json.xz")
        curves, watched = archive.curves(), archive.study.design.watched
        for i, arm in enumerate(arms):
            ends = [_end(curves[arm + rate], watched) for rate in RATES if curves.get(arm + rate)]
            x, y = zip(*ends, strict=True)
            axis.plot(x, y, color=COLORS[i % len(COLORS)], linewidth=1, label=arm)
            for at, marker in zip(ends, MARKERS, strict=False):
                axis.plot(*at, color=COLORS[i % len(COLORS)], marker=marker, markersize=6)
        axis.set(xlabel="Pass@1 at the end (%)", ylabel="Pass@16 at the end (%)", title=study.split("-")[0])
    figure.legend(*axis.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8)
    return figure


def _end(cells: Mapping[int, Curve], watched: str) -> tuple[float, float]:
    """Mean Pass@1 and Pass@16 over seeds after the last step, in percent."""
    ends = [[100 * c.mean(watched, f"pass@{k}")[-1] for k in (1, 16)] for c in cells.values()]
    one, many = np.mean(ends, axis=0)
    return float(one), float(many)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    table = table_of({name: Start(folder, names) for name, names in STARTS.items()})
    print(markdown(table))
    save(forest(table, list(STARTS)), folder, "starts-forest")
    arms = ("grpo", "hora", "max-rl", "likelihood", "likelihood-stop")
    save(frontier(folder, ("facts-arms", "pairs-arms"), arms), folder, "starts-frontier")


if __name__ == "__main__":
    main()
