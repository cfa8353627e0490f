"""Curves of a study's cells, and the comparisons of arms that its design asks for, paired by seed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hora_rl.evaluation.run_folders import RunFolderError
from research.report.statistics import Difference, area, at_matched, holm, paired_difference
from research.study.cells import Design

Array = NDArray[np.float64]
Curves = Mapping[str, Mapping[int, "Curve"]]
Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Curve:
    """One cell: `values[set][figure]` (T, P) at `steps` (T,), and `training[figure]` per optimizer step.

    P counts problems; P = 1 where a figure is an exact mean over the prompts of its set.
    """

    steps: Array
    values: Mapping[str, Mapping[str, Array]]
    training: Mapping[str, Array]

    def mean(self, name: str, figure: str) -> Array:
        """(T,) over the problems of the set `name`. Raises RunFolderError where there is no such set."""
        if name not in self.values:
            raise RunFolderError(f"design.watched ({name}) is none of the sets ({', '.join(self.values)})")
        return self.values[name][figure].mean(axis=1)

    def summary(self, name: str, figure: str) -> Array:
        """(P,) area over steps; with no evaluation between start and end, the end."""
        values = self.values[name][figure]
        return values[-1] if self.ends_only else area(self.steps, values)

    @property
    def ends_only(self) -> bool:
        return len(self.steps) == 2

    @property
    def kind(self) -> str:
        """What a summary is."""
        return "end" if self.ends_only else "area"

    @property
    def moments(self) -> dict[str, int]:
        """Indices of the start, of half time and of the end in `steps`."""
        half = {} if self.ends_only else {"half": len(self.steps) // 2}
        return {"start": 0, **half, "end": -1}

    def ks(self, pass_at: int) -> tuple[int, ...]:
        """The K of tables: 1, `pass_at` and the largest."""
        figures = next(iter(self.values.values()))
        most = max(int(name.removeprefix("pass@")) for name in figures if name.startswith("pass@"))
        return tuple(dict.fromkeys((1, pass_at, most)))


@dataclass(frozen=True, slots=True)
class Compared:
    """One comparison on the seeds that both arms have.

    `primary` is the summary of Pass@K on the watched set (see `Curve.summary`), `corrected` its p-value after
    Holm (NaN for an exploratory one). `pass_1` is the summary of Pass@1, `matched` Pass@K at equal Pass@1,
    `moments[when, k]` Pass@k at half time and the end, `kept` Pass@1 at the end above the margin's loss.
    """

    arm: str
    baseline: str
    primary: Difference
    corrected: float
    pass_1: Difference
    matched: Difference | None
    kept: Difference
    moments: Mapping[tuple[str, int], Difference]


def curve_of(record: Mapping[str, object]) -> Curve:
    """The curve of a cell's record, as `research.study.exact_curves` writes it.

    Raises TypeError, KeyError or ValueError for another record.
    """
    curves, steps = record["curves"], record["steps"]
    if not isinstance(curves, dict) or not isinstance(steps, list):
        raise TypeError("curves and steps are not tables")
    tables = {name: columns(points) for name, points in curves.items()}
    values = {name: {key: c[:, None] for key, c in table.items()} for name, table in tables.items()}
    return Curve(next(iter(tables.values()))["step"], values, columns(steps))


def columns(points: Sequence[Mapping[str, float]]) -> dict[str, Array]:
    return {name: np.array([p[name] for p in points], dtype=np.float64) for name in points[0]}


def compare(curves: Curves, design: Design, pairs: Sequence[Pair]) -> list[Compared]:
    """Each of `pairs` that has a seed in common, uncorrected."""
    shared = [(a, b) for a, b in pairs if curves.get(a, {}).keys() & curves.get(b, {}).keys()]
    return [_compared(curves, design, *pair) for pair in shared]


def decide(curves: Curves, design: Design) -> list[Compared]:
    """The comparisons of `design`, with Holm's correction over them."""
    compared = compare(curves, design, design.comparisons)
    corrected = holm([c.primary.p for c in compared])
    return [replace(c, corrected=p) for c, p in zip(compared, corrected, strict=True)]


def _compared(curves: Curves, design: Design, arm: str, baseline: str) -> Compared:
    seeds = sorted(curves[arm].keys() & curves[baseline].keys())
    sides = [[curves[a][seed] for seed in seeds] for a in (arm, baseline)]
    watched, single, many = design.watched, "pass@1", f"pass@{design.pass_at}"
    first = sides[0][0]
    levels = [[c.mean(watched, many) for c in side] for side in sides]  # refuses a set that is not there

    def differ(of: Callable[[Curve], Array], more: float = 0.0) -> Difference:
        mine, theirs = (np.array([of(c) for c in side]) for side in sides)
        return paired_difference(mine + more, theirs)

    def at(index: int, k: int) -> Difference:
        return differ(lambda c: c.values[watched][f"pass@{k}"][index])

    return Compared(
        arm,
        baseline,
        primary=differ(lambda c: c.summary(watched, many)),
        corrected=np.nan,
        pass_1=differ(lambda c: c.summary(watched, single)),
        matched=_matched([[c.mean(watched, single) for c in side] for side in sides], levels),
        kept=differ(lambda c: c.values[watched][single][-1], design.margin),
        moments={
            (when, k): at(index, k)
            for when, index in first.moments.items()
            for k in first.ks(design.pass_at)
            if when != "start"
        },
    )


def change(cells: Sequence[Curve], name: str, k: int, since: int) -> Difference:
    """Pass@k of the set `name` at the end less that of the evaluation `since`, of one arm's cells."""
    values = [c.values[name][f"pass@{k}"] for c in cells]
    return paired_difference([v[-1] for v in values], [v[since] for v in values])


def _matched(pass_1: list[list[Array]], pass_k: list[list[Array]]) -> Difference | None:
    """Pass@K at the lowest of the sides' highest Pass@1: the level that both sides of every seed reach."""
    level = min(float(values.max()) for side in pass_1 for values in side)
    read = [
        [at_matched(level, *curves) for curves in zip(*both, strict=True)]
        for both in zip(pass_1, pass_k, strict=True)
    ]
    return None if np.isnan(read).any() else paired_difference(*read)
