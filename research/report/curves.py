"""Curves of a study's cells, and the comparisons of arms that its design asks for, paired by seed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hora_rl.evaluation.run_folders import RunFolderError
from research.report.paired import Difference, area, at_matched, holm, paired_difference

Array = NDArray[np.float64]
Curves = Mapping[str, Mapping[int, "Curve"]]
Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides, written down before the study ran: see `research.study.cells.Design`."""

    comparisons: tuple[Pair, ...]
    hypotheses: tuple[str, ...]
    watched: str
    pass_at: int
    margin: float
    exclusions: tuple[str, ...]
    exploratory: tuple[Pair, ...] = ()


@dataclass(frozen=True, slots=True)
class Curve:
    """One cell: `values[set][figure]` (T,) at `steps` (T,), and `training[figure]` per optimizer step."""

    steps: Array
    values: Mapping[str, Mapping[str, Array]]
    training: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Compared:
    """One comparison on the seeds that both arms have.

    `primary` is the area under Pass@K on the watched set, `corrected` its p-value after Holm (NaN for an
    exploratory one), `deviation` how its differences spread over seeds. `pass_1` is the area under Pass@1,
    `matched` Pass@K at equal Pass@1. `moments[when, k]` are Pass@k at half time and at the end, and
    `sets[name]` the areas under Pass@1 and Pass@K on the other sets.
    """

    arm: str
    baseline: str
    primary: Difference
    corrected: float
    pass_1: Difference
    matched: Difference | None
    deviation: float
    moments: Mapping[tuple[str, int], Difference]
    sets: Mapping[str, tuple[Difference, Difference]]


def load_curve(path: Path) -> Curve:
    """Raises RunFolderError for a file that is no curve."""
    try:
        return curve_of(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{path}: holds no curves ({type(error).__name__}: {error})") from None


def curve_of(found: Mapping[str, object]) -> Curve:
    """The curve of a cell's record, as `research.study.loop` writes it."""
    curves, steps = found["curves"], found["steps"]
    if not isinstance(curves, dict) or not isinstance(steps, list):
        raise TypeError("curves and steps are not tables")
    values = {name: _columns(points) for name, points in curves.items()}
    return Curve(next(iter(values.values()))["step"], values, _columns(steps))


def compare(curves: Curves, rules: Rules) -> list[Compared]:
    """Every comparison of `rules` that has a seed in common, with Holm's correction over them."""
    found = _all(curves, rules, rules.comparisons)
    corrected = holm({str(i): c.primary.p for i, c in enumerate(found) if c.primary.seeds > 1})
    return [replace(c, corrected=corrected.get(str(i), math.nan)) for i, c in enumerate(found)]


def explore(curves: Curves, rules: Rules) -> list[Compared]:
    """The exploratory comparisons that have a seed in common, uncorrected."""
    return _all(curves, rules, rules.exploratory)


def figure_of(curve: Curve, rules: Rules, k: int, name: str | None = None) -> Array:
    """Pass@k (T,) on the watched set, or on the set `name`. Raises RunFolderError where there is no such
    set."""
    wanted = name or rules.watched
    if wanted not in curve.values:
        raise RunFolderError(f"design.watched ({wanted}) is none of the sets ({', '.join(curve.values)})")
    return curve.values[wanted][f"pass@{k}"]


def _all(curves: Curves, rules: Rules, pairs: Sequence[Pair]) -> list[Compared]:
    shared = [(a, b) for a, b in pairs if curves.get(a, {}).keys() & curves.get(b, {}).keys()]
    return [_compared(curves, rules, arm, baseline) for arm, baseline in shared]


def _compared(curves: Curves, rules: Rules, arm: str, baseline: str) -> Compared:
    seeds = sorted(curves[arm].keys() & curves[baseline].keys())
    mine, theirs = ([curves[a][s] for s in seeds] for a in (arm, baseline))

    def areas(k: int, name: str | None = None) -> tuple[list[float], list[float]]:
        mine_, theirs_ = (
            [area(c.steps, figure_of(c, rules, k, name)) for c in side] for side in (mine, theirs)
        )
        return mine_, theirs_

    def at(place: int, k: int) -> Difference:
        return paired_difference(*([figure_of(c, rules, k)[place] for c in side] for side in (mine, theirs)))

    wanted = areas(rules.pass_at)
    half = len(mine[0].steps) // 2
    others = [name for name in mine[0].values if name != rules.watched]
    return Compared(
        arm,
        baseline,
        primary=paired_difference(*wanted),
        corrected=math.nan,
        pass_1=paired_difference(*areas(1)),
        matched=_matched(mine, theirs, rules),
        deviation=float(np.diff(wanted, axis=0).std(ddof=1)) if len(seeds) > 1 else 0.0,
        moments={
            (when, k): at(place, k)
            for when, place in (("half", half), ("end", -1))
            for k in (1, rules.pass_at, 256)
        },
        sets={
            name: (
                paired_difference(*areas(1, name)),
                paired_difference(*areas(rules.pass_at, name)),
            )
            for name in others
        },
    )


def _matched(mine: Sequence[Curve], theirs: Sequence[Curve], rules: Rules) -> Difference | None:
    """Pass@K where Pass@1 is the same: the level that both sides of every seed reach, the lowest of their
    highest."""
    sides = [[figure_of(c, rules, 1) for c in side] for side in (mine, theirs)]
    level = min(float(v.max()) for side in sides for v in side)
    read = [
        [at_matched(level, figure_of(c, rules, 1), figure_of(c, rules, rules.pass_at)) for c in side]
        for side in (mine, theirs)
    ]
    return None if np.isnan(read).any() else paired_difference(*read)


def _columns(points: Sequence[Mapping[str, float]]) -> dict[str, Array]:
    return {name: np.array([p[name] for p in points], dtype=np.float64) for name in points[0]}
