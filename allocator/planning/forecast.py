"""`allocator.plan`: forecast each arm's yield on prompts like the counted ones, and recommend one.

The distribution F of success rates is fitted to the counts, and `outcome` computes each arm on F. Intervals
resample prompts and refit F. On another F', an arm's outcome by rate is reweighted and corrected by its
marginal worth of a rollout times the missing budget. That is exact to first order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hora_rl.allocator.planning.outcome import (
    GRID,
    Arm,
    Outcome,
    fit_mixture,
    outcome,
    phase_a,
    resampled_mixtures,
)
from hora_rl.allocator.planning.table import Plan, Rest, Row
from hora_rl.allocator.posterior import Float, Int, check_counts, check_trials, check_whole
from hora_rl.allocator.rules import get_rule, needs_counts
from hora_rl.allocator.rules.base import Division
from hora_rl.allocator.session import STOPS

SAMPLES = 120
WIDEN = 1.25
"""The bootstrap alone is too narrow: its deviations are multiplied by WIDEN, then PAD is added."""
PAD = 0.003
EPOCHS = (3, 10)
"""Lengths of a run for which the plan says what rests would spare."""
ENDS = ("", "_low", "_high")
LEAST_PROMPTS, ENOUGH_PROMPTS = 100, 300
SIZES = (8, 16, 32, 64, 128)
ARMS = (
    *("uniform", "hit_utility", "hit_utility/hit", "mixed/mixed"),
    *("hit_or_miss", "hard_first", "variance", "knapsack"),
)


def reach(trials: Int) -> int:
    """The largest group size that can be forecast: nine prompts in ten have that many trials (m,)."""
    return int(np.quantile(trials, 0.1, method="lower"))


@dataclass(frozen=True, slots=True, eq=False)
class Basis:
    """Weights (K,) of F and (B, K) of its resamples, and uniform's outcome by G."""

    weights: Float
    resampled: Float
    uniform: dict[int, Outcome]
    reach: int


def plan(
    successes: ArrayLike,
    trials: ArrayLike,
    group_sizes: Sequence[int] | None = None,
    pre_rollouts: Sequence[int] | None = None,
    rules: Sequence[str] = ARMS,
    rounds: Sequence[int] = (1, 4),
    gradients: tuple[float, float, int] | None = None,
) -> Plan:
    """Forecast each rule on prompts like these; `print` shows the plan.

    successes: (m,) among `trials`, an int or (m,), of m >= 100 prompts, better 300. group_sizes: G, by
    default every power of two from 16 that the trials reach. pre_rollouts: G0, by default 4 and 8. rules: as
    for `allocate`, with a stop after a slash: `first_hit/hit`. rounds: R. gradients: the noise r of a hit,
    the overlap ρ of two prompts' gradients and Γ, which give the leverage 1/(1 + ρA) of a gain
    (docs/explanation/method.md, Rules).

    >>> rates = np.random.default_rng(0).beta(0.3, 0.9, 400)
    >>> forecast = plan(np.random.default_rng(1).binomial(64, rates), 64, [16], [4], ["first_hit/hit"], [4])
    >>> forecast.recommended.uniform_group_size
    38

    Raises ValueError naming the argument and the first offending index, or a group size beyond the trials.
    """
    c, n = _counts(successes, trials)
    chosen = arms_within(reach(n), group_sizes, pre_rollouts, rules, rounds, gradients)
    weights = fit_mixture(c, n)
    basis = Basis(
        weights,
        resampled_mixtures(c, n, SAMPLES),
        {g: outcome(Arm("uniform", "none", 1, 1, g), weights) for g in {a.group_size for a in chosen}},
        reach(n),
    )
    outcomes = {arm: outcome(arm, weights) for arm in chosen}
    rows = tuple(_row(arm, result, _worth(arm, outcomes, weights), basis) for arm, result in outcomes.items())
    best = recommend(rows)
    few = f"{len(c)} prompts are few; {ENOUGH_PROMPTS} make intervals that a plan can be built on"
    return Plan(
        rows,
        best,
        notes=(few,) if len(c) < ENOUGH_PROMPTS else (),
        rests=tuple(Rest(t, *_interval(spared(GRID, best.pre_rollouts, t), basis)) for t in EPOCHS),
        leverage=None if gradients is None else _leverage(weights, best.group_size, *gradients),
    )


def _leverage(weights: Float, size: int, noise: float, overlap: float, prompts: int) -> float:
    """1/(1 + ρA) of a batch of Γ prompts with rates distributed by `weights` (K,), in groups of `size`."""
    states = phase_a(size)
    c = states.successes[1:]
    worth = c / ((1 - overlap) * c + noise)
    return float(1 / (1 + overlap * prompts * (weights @ states.probability[:, 1:] @ worth)))


def _worth(arm: Arm, outcomes: dict[Arm, Outcome], weights: Float) -> tuple[float, float]:
    """Hits and mixed groups gained per additional rollout per prompt."""
    others = [g for g in {a.group_size for a in outcomes} if g != arm.group_size]
    g = min(others, key=lambda g: abs(np.log(g / arm.group_size)), default=0)
    other = replace(arm, group_size=g)
    if other not in outcomes:
        other = replace(arm, group_size=arm.group_size + max(1, arm.group_size // 8))
    here, there = outcomes[arm], outcomes.get(other) or outcome(other, weights)
    size, hits, signal = (
        float(weights @ (getattr(there, name) - getattr(here, name))) for name in ("size", "hits", "signal")
    )
    return hits / size, signal / size


def _row(arm: Arm, result: Outcome, worth: tuple[float, float], basis: Basis) -> Row:
    size = arm.group_size
    uniform, over = basis.uniform[size], result.size - size
    hits, signal = result.hits - worth[0] * over, result.signal - worth[1] * over
    gain = hits - uniform.hits if needs_counts(arm.rule) else np.zeros_like(hits)
    intervals: dict[str, Any] = {
        name + end: share
        for name, value in (("hits", hits), ("gain", gain), ("signal", signal))
        for end, share in zip(ENDS, _interval(value, basis), strict=True)
    }
    for end in ENDS:
        same = _same_as_uniform(float(basis.weights @ uniform.hits) + intervals[f"gain{end}"], basis)
        intervals[f"uniform_group_size{end}"] = same if needs_counts(arm.rule) else size
    return Row(arm.rule, arm.rounds, arm.stop, size, arm.pre_rollouts, **intervals)


def _interval(value: Float, basis: Basis) -> tuple[float, float, float]:
    """The mean of `value` (K,) and its widened 90% interval."""
    mean = float(basis.weights @ value)
    low, high = np.quantile(basis.resampled @ value, [0.05, 0.95])
    return (
        mean,
        max(-1.0, mean - WIDEN * max(mean - float(low), 0) - PAD),
        min(1.0, mean + WIDEN * max(float(high) - mean, 0) + PAD),
    )


def _same_as_uniform(hits: float, basis: Basis) -> int | None:
    """The smallest G at which uniform sampling has this share of prompts with a hit; None if beyond."""
    sizes = np.arange(1, basis.reach + 1)
    uniform = 1 - basis.weights @ (1 - GRID[:, None]) ** sizes
    enough = np.flatnonzero(uniform >= hits - 1e-9)
    return int(sizes[enough[0]]) if enough.size else None


def recommend(rows: Sequence[Row]) -> Row:
    """The best row of the largest G: most prompts with a hit among rows that lose at most half a point of
    signal to uniform sampling. Rows within a tenth of a point tie, and fewer rounds win."""
    largest = [row for row in rows if row.group_size == max(r.group_size for r in rows)]
    plain = [row.signal for row in largest if not needs_counts(row.rule)]
    fit = [row for row in largest if not plain or row.signal >= max(plain) - 0.005] or largest
    best = max(row.hits for row in fit)
    return min((row for row in fit if row.hits >= best - 0.001), key=lambda r: (r.rounds, -r.hits))


def spared(rates: Float, pre_rollouts: int, epochs: int) -> Float:
    """Expected share of `epochs` epochs that a prompt of each rate (K,) rests: the k-th visit in a row with
    all `pre_rollouts` right is followed by a rest of 2^(k-1) epochs."""
    solved = rates**pre_rollouts
    visits = np.zeros((epochs, epochs + 1, len(rates)))  # probability of one, by epoch and series before it
    visits[0, 0] = 1.0
    for epoch in range(epochs - 1):
        visits[epoch + 1, 0] += visits[epoch].sum(0) * (1 - solved)
        for times in range(epoch + 1):
            back = epoch + 1 + 2**times
            if back < epochs:
                visits[back, times + 1] += visits[epoch, times] * solved
    return np.asarray(1 - visits.sum((0, 1)) / epochs)


def arms_within(
    most: int,
    group_sizes: Sequence[int] | None,
    pre_rollouts: Sequence[int] | None,
    rules: Sequence[str],
    rounds: Sequence[int],
    gradients: tuple[float, float, int] | None,
) -> list[Arm]:
    """The arms of a `plan` from `most` trials a prompt. Raises ValueError as it does."""
    sizes = _sizes(group_sizes, most)
    below = [g for g in (4, 8) if g < max(sizes)]
    pre = below if pre_rollouts is None else _whole("pre_rollouts", pre_rollouts)
    chosen = arms([_rule(i, rule) for i, rule in enumerate(rules)], _whole("rounds", rounds), pre, sizes)
    _check(most, chosen)
    noise, overlap, prompts = gradients or (0.0, 0.0, 1)
    if not (noise >= 0 and 0 <= overlap < 1 and prompts >= 1):
        raise ValueError(
            f"gradients = ({noise:g}, {overlap:g}, {prompts}): the noise is from 0, the overlap from 0 to "
            "below 1, and there is a prompt"
        )
    return chosen


def _counts(successes: ArrayLike, trials: ArrayLike) -> tuple[Int, Int]:
    c = check_counts(successes)
    n = np.broadcast_to(check_trials(trials, c), c.shape)
    if not n.all():
        raise ValueError(f"trials[{int(np.argmin(n))}] = 0 must be positive")
    if len(c) < LEAST_PROMPTS:
        raise ValueError(
            f"successes: {len(c)} prompts say too little about how rates are distributed: a plan needs "
            f"{LEAST_PROMPTS}, better {ENOUGH_PROMPTS}, training prompts"
        )
    return c, n


def _sizes(numbers: Sequence[int] | None, most: int) -> list[int]:
    if numbers is not None:
        return _whole("group_sizes", numbers)
    within = [g for g in SIZES if 8 < g <= most]
    if not within:
        raise ValueError(
            f"trials: {most} trials a prompt are too few to plan with: sample 16 or more, or give "
            "group_sizes and pre_rollouts within them"
        )
    return within


def _whole(name: str, numbers: Sequence[int]) -> list[int]:
    if not len(numbers):
        raise ValueError(f"{name} is empty")
    return [check_whole(f"{name}[{i}]", number, 1) for i, number in enumerate(numbers)]


def _rule(i: int, text: str) -> tuple[str, str]:
    """(rule, stop) of `hit_utility/hit`."""
    rule, _, stop = text.partition("/")
    if (stop or "none") not in STOPS:
        raise ValueError(f"rules[{i}] = {text!r}: stop {stop!r} is none of {', '.join(STOPS)}")
    try:
        get_rule(rule)
    except ValueError as error:
        raise ValueError(f"rules[{i}] = {text!r}: {error}") from None
    return rule, stop or "none"


def arms(
    rules: Sequence[tuple[str, str]],
    rounds: Sequence[int],
    pre_rollouts: Sequence[int],
    group_sizes: Sequence[int],
) -> list[Arm]:
    """All valid combinations: G0 < G, and uniform once per G."""
    return [
        Arm(rule, stop, r if needs_counts(rule) else 1, g0, g)
        for g in sorted(set(group_sizes))
        for g0 in sorted(set(pre_rollouts))
        for rule, stop in rules
        for r in sorted(set(rounds))
        if g0 < g and (needs_counts(rule) or (r == min(rounds) and g0 == min(pre_rollouts)))
    ]


def _check(most: int, chosen: Sequence[Arm]) -> None:
    """Raise ValueError for an arm that is impossible, or beyond `most` trials per prompt."""
    if not chosen:
        raise ValueError("no arm to plan: every pre_rollouts must leave some group_sizes above it")
    for arm in chosen:
        if arm.group_size > most:
            raise ValueError(
                f"group size {arm.group_size} is beyond these counts: of {most} trials a prompt nothing is "
                f"known beyond {most}; sample more, or ask for group size {most}"
            )
        rule = get_rule(arm.rule)
        if not isinstance(rule, Division) and arm.pre_rollouts < rule.least_trials:
            raise ValueError(
                f"rule {arm.rule} needs {rule.least_trials} pre-rollouts, not {arm.pre_rollouts}"
            )
