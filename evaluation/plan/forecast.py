"""The plan: what every arm would yield on prompts like those counted, with intervals, and which arm to take.

The rates' distribution F is fitted, each arm's outcome on it computed (`outcome`). Intervals resample prompts
and refit F. An arm's outcome on another F' is its outcome by rate, weighted anew, less what the budget then
lacks at the arm's own marginal worth of a rollout: exact to first order, and it needs no second simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from allocator.mixture import GRID, fit_mixture, resampled_mixtures, responsibilities
from allocator.posterior import Float
from allocator.rules import get_rule
from allocator.rules.base import Division
from evaluation.plan.counts import Counts, CountsError
from evaluation.plan.outcome import Arm, Outcome, outcome
from evaluation.plan.shards import shift

SAMPLES = 120
WIDEN = 1.25
"""Factor on the bootstrap's deviations, and PAD in addition: the bootstrap alone is too narrow.
"""
PAD = 0.003
DIFFICULTY = (0.01, 0.05, 0.2, 0.8, 1.0)
"""Upper ends of the classes of success rate."""
ARMS = (
    ("uniform", "none"),
    ("hit_utility", "none"),
    ("hit_utility", "hit"),
    ("mixed", "mixed"),
    ("hit_or_miss", "none"),
    ("hard_first", "none"),
    ("variance", "none"),
    ("knapsack", "none"),
)


@dataclass(frozen=True, slots=True)
class Class:
    """Prompts with a rate up to `up_to`: their share, what becomes of them, and their update over uniform's
    at equal G.

    `hits` is also the share of the likelihood's gradient Σ ∇log p that a batch realises there.
    """

    up_to: float
    prompts: float
    hits: float
    size: float
    update: float


@dataclass(frozen=True, slots=True)
class Row:
    """One arm. Shares of prompts with a hit and of groups with signal, with 90% intervals; per prompt
    rollouts and tokens.

    `gain`: hits less those of uniform sampling at equal G.
    `uniform_group_size`: the G at which uniform sampling has as many prompts with a hit; None beyond the
    counts' reach.
    """

    rule: str
    rounds: int
    stop: str
    group_size: int
    pre_rollouts: int
    hits: float
    hits_low: float
    hits_high: float
    gain: float
    gain_low: float
    gain_high: float
    signal: float
    signal_low: float
    signal_high: float
    rollouts: float
    tokens: float | None
    uniform_group_size: int | None
    by_difficulty: tuple[Class, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    rows: tuple[Row, ...]
    recommended: Row
    notes: tuple[str, ...]


def arms(
    rules: Sequence[tuple[str, str]],
    rounds: Sequence[int],
    pre_rollouts: Sequence[int],
    group_sizes: Sequence[int],
) -> list[Arm]:
    """All combinations that make sense: one round of uniform, G0 below G."""
    return [
        Arm(rule, stop, r, g0, g)
        for g in sorted(set(group_sizes))
        for g0 in (sorted(set(pre_rollouts)))
        for rule, stop in rules
        for r in sorted(set(rounds))
        if g0 < g and (rule != "uniform" or (r == min(rounds) and g0 == _first_below(pre_rollouts, g)))
    ]


def _first_below(pre_rollouts: Sequence[int], g: int) -> int:
    return min((g0 for g0 in pre_rollouts if g0 < g), default=0)


@dataclass(frozen=True, slots=True, eq=False)
class Basis:
    """What the counts say: weights (K,) of F and of each resample (B, K), tokens of a completion (K,),
    uniform by G."""

    weights: Float
    resampled: Float
    lengths: Float | None
    uniform: dict[int, Outcome]
    reach: int


def forecast(counts: Counts, chosen: Sequence[Arm], shard: int | None = None) -> Plan:
    """The plan of these arms, for a large batch or for shards of `shard` prompts.

    Raises CountsError for a group size beyond the counts' reach.
    """
    check(counts, chosen, shard)
    weights = fit_mixture(counts.successes, counts.trials)
    basis = Basis(
        weights,
        resampled_mixtures(counts.successes, counts.trials, SAMPLES),
        _lengths(counts, weights),
        {g: outcome(Arm("uniform", "none", 1, 1, g), weights) for g in {a.group_size for a in chosen}},
        counts.reach,
    )
    outcomes = {arm: outcome(arm, weights) for arm in chosen}
    rows = tuple(
        _row(arm, found, _worth(arm, outcomes, weights), basis, _shift(arm, found, weights, shard))
        for arm, found in outcomes.items()
    )
    return Plan(rows, recommend(rows), counts.notes)


def _shift(arm: Arm, found: Outcome, weights: Float, shard: int | None) -> tuple[float, float]:
    """What shards change; nothing under uniform sampling."""
    return (0.0, 0.0) if shard is None or arm.rule == "uniform" else shift(arm, found, weights, shard)


def check(counts: Counts, chosen: Sequence[Arm], shard: int | None) -> None:
    """Raise CountsError for an arm that cannot be foretold from these counts, or cannot be at all."""
    if not chosen:
        raise CountsError("no arm to plan: every --pre-rollouts must leave some --group-size above it")
    for arm in chosen:
        if arm.group_size > counts.reach:
            raise CountsError(
                f"group size {arm.group_size} is beyond these counts: of {counts.reach} trials a prompt "
                f"nothing is known beyond {counts.reach}; sample more, or ask for --group-size {counts.reach}"
            )
        budget = None if shard is None else shard * (arm.group_size - arm.pre_rollouts)
        if budget is not None and arm.rounds > budget:
            raise CountsError(
                f"{arm.rounds} rounds exceed Phase B's {budget} rollouts of a shard of {shard} prompts"
            )
        rule = get_rule(arm.rule)
        if not isinstance(rule, Division) and arm.pre_rollouts < rule.least_trials:
            raise CountsError(
                f"rule {arm.rule} needs {rule.least_trials} pre-rollouts, not {arm.pre_rollouts}"
            )


def _worth(arm: Arm, outcomes: dict[Arm, Outcome], weights: Float) -> tuple[float, float]:
    """Hits and mixed groups that one more rollout a prompt adds."""
    others = [g for g in {a.group_size for a in outcomes} if g != arm.group_size]
    g = min(others, key=lambda g: abs(np.log(g / arm.group_size)), default=0)
    other = replace(arm, group_size=g)
    if other not in outcomes:
        other = replace(arm, group_size=arm.group_size + max(1, arm.group_size // 8))
    here, there = outcomes[arm], outcomes.get(other) or outcome(other, weights)
    step = float(weights @ (there.size - here.size))
    return float(weights @ (there.hits - here.hits)) / step, float(
        weights @ (there.signal - here.signal)
    ) / step


def _row(
    arm: Arm, found: Outcome, worth: tuple[float, float], basis: Basis, shifted: tuple[float, float]
) -> Row:
    weights, over = basis.weights, found.size - arm.group_size
    hits = found.hits - worth[0] * over + shifted[0]
    signal = found.signal - worth[1] * over + shifted[1]
    gain = hits - basis.uniform[arm.group_size].hits
    (hit, hit_low, hit_high), (more, more_low, more_high), (mix, mix_low, mix_high) = (
        _interval(value, weights, basis.resampled) for value in (hits, gain, signal)
    )
    lengths = basis.lengths
    return Row(
        rule=arm.rule,
        rounds=arm.rounds,
        stop=arm.stop,
        group_size=arm.group_size,
        pre_rollouts=arm.pre_rollouts,
        hits=hit,
        hits_low=hit_low,
        hits_high=hit_high,
        gain=more,
        gain_low=more_low,
        gain_high=more_high,
        signal=mix,
        signal_low=mix_low,
        signal_high=mix_high,
        rollouts=float(arm.group_size),
        tokens=None if lengths is None else float(weights @ ((found.size - weights @ over) * lengths)),
        uniform_group_size=_same_as_uniform(hit, weights, basis.reach),
        by_difficulty=_classes(found, basis.uniform[arm.group_size], weights),
    )


def _interval(value: Float, weights: Float, resampled: Float) -> tuple[float, float, float]:
    """The mean of `value` (K,) and its widened 90% interval."""
    mean = float(weights @ value)
    low, high = np.quantile(resampled @ value, [0.05, 0.95])
    return (
        mean,
        max(-1.0, mean - WIDEN * max(mean - float(low), 0) - PAD),
        min(1.0, mean + WIDEN * max(float(high) - mean, 0) + PAD),
    )


def _same_as_uniform(hits: float, weights: Float, reach: int) -> int | None:
    sizes = np.arange(1, reach + 1)
    uniform = 1 - weights @ (1 - GRID[:, None]) ** sizes
    enough = np.flatnonzero(uniform >= hits - 1e-9)
    return int(sizes[enough[0]]) if enough.size else None


def _lengths(counts: Counts, weights: Float) -> Float | None:
    """(K,) expected tokens of one completion at each rate, from the prompts that may have it."""
    if counts.tokens is None:
        return None
    belongs = responsibilities(counts.successes, counts.trials, weights)
    mean = counts.tokens / counts.trials
    total = belongs.sum(0)
    return np.asarray(np.where(total > 0, belongs.T @ mean / np.maximum(total, 1e-12), mean.mean()))


def _classes(found: Outcome, uniform: Outcome, weights: Float) -> tuple[Class, ...]:
    classes, below = [], -1.0
    for up_to in DIFFICULTY:
        here = weights * ((below < GRID) & (up_to >= GRID))
        below = up_to
        share = float(here.sum())
        if share > 1e-6:
            moved = float(here @ found.update) / max(float(here @ uniform.update), 1e-12)
            classes.append(
                Class(up_to, share, float(here @ found.hits) / share, float(here @ found.size) / share, moved)
            )
    return tuple(classes)


def recommend(rows: Sequence[Row]) -> Row:
    """Of the rows with the largest G: most prompts with a hit among those that lose no more than half a point
    of signal to uniform sampling; fewest rounds where they tie within a tenth of a point."""
    largest = [row for row in rows if row.group_size == max(r.group_size for r in rows)]
    plain = [row.signal for row in largest if row.rule == "uniform"]
    fit = [row for row in largest if not plain or row.signal >= max(plain) - 0.005] or largest
    best = max(row.hits for row in fit)
    return min((row for row in fit if row.hits >= best - 0.001), key=lambda r: (r.rounds, -r.hits))
