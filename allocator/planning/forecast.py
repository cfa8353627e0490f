"""Forecast each arm's yield on prompts like the counted ones, with intervals, and recommend one.

The distribution F of success rates is fitted to the counts, and `outcome` computes each arm on F. Intervals
resample prompts and refit F. On another F', an arm's outcome by rate is reweighted and corrected by its
marginal worth of a rollout times the missing budget. That is exact to first order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hora_rl.allocator.mixture import GRID, fit_mixture, resampled_mixtures
from hora_rl.allocator.planning.outcome import Arm, Outcome, outcome, phase_a
from hora_rl.allocator.planning.table import Plan, Rest, Row
from hora_rl.allocator.posterior import Float, Int
from hora_rl.allocator.rules import needs_counts
from hora_rl.allocator.session import Session

SAMPLES = 120
WIDEN = 1.25
"""The bootstrap alone is too narrow: its deviations are multiplied by WIDEN, then PAD is added."""
PAD = 0.003
EPOCHS = (3, 10)
"""Lengths of a run for which the plan says what rests would spare."""
ENDS = ("", "_low", "_high")


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


def forecast(
    successes: Int,
    trials: Int,
    chosen: Sequence[Arm],
    notes: tuple[str, ...] = (),
    gradients: tuple[float, float, int] | None = None,
) -> Plan:
    """The plan of these arms for a large batch, from counts (m,)."""
    weights = fit_mixture(successes, trials)
    basis = Basis(
        weights,
        resampled_mixtures(successes, trials, SAMPLES),
        {g: outcome(Arm("uniform", "none", 1, 1, g), weights) for g in {a.group_size for a in chosen}},
        reach(trials),
    )
    outcomes = {arm: outcome(arm, weights) for arm in chosen}
    rows = tuple(_row(arm, result, _worth(arm, outcomes, weights), basis) for arm, result in outcomes.items())
    best = recommend(rows)
    leverage = None if gradients is None else _leverage(weights, best.group_size, *gradients)
    rests = tuple(
        Rest(epochs, *_interval(spared(GRID, best.pre_rollouts, epochs), basis)) for epochs in EPOCHS
    )
    return Plan(rows, best, notes, rests, leverage)


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
    intervals: dict[str, Any] = {
        name + end: share
        for name, value in (("hits", hits), ("gain", hits - uniform.hits), ("signal", signal))
        for end, share in zip(ENDS, _interval(value, basis), strict=True)
    }
    for end in ENDS:
        same = _same_as_uniform(float(basis.weights @ uniform.hits) + intervals[f"gain{end}"], basis)
        intervals[f"uniform_group_size{end}"] = same if needs_counts(arm.rule) else size
    return Row(
        rule=arm.rule,
        rounds=arm.rounds,
        stop=arm.stop,
        group_size=size,
        pre_rollouts=arm.pre_rollouts,
        **intervals,
    )


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
    """The best row of the largest G.

    Most prompts with a hit among rows that lose at most half a point of signal to uniform sampling. Rows
    within a tenth of a point tie, and fewer rounds win.
    """
    largest = [row for row in rows if row.group_size == max(r.group_size for r in rows)]
    plain = [row.signal for row in largest if not needs_counts(row.rule)]
    fit = [row for row in largest if not plain or row.signal >= max(plain) - 0.005] or largest
    best = max(row.hits for row in fit)
    return min((row for row in fit if row.hits >= best - 0.001), key=lambda r: (r.rounds, -r.hits))


def simulate(session: Session, rates: Float, pre_rollouts: int, rng: np.random.Generator) -> tuple[Int, Int]:
    """Sample all rollouts of a session from prompts with these success `rates` (n,); returns successes and
    group sizes, both (n,)."""
    session.tell(rng.binomial(pre_rollouts, rates), pre_rollouts)
    while not session.done:
        extra = session.ask()
        session.tell(rng.binomial(extra, rates), extra)
    return session.successes, session.trials


def spared(rates: Float, pre_rollouts: int, epochs: int) -> Float:
    """Expected share of a run of `epochs` epochs that a prompt of each rate (K,) rests.

    A visit with all `pre_rollouts` right, the k-th in a row, is followed by a rest of 2^(k-1) epochs.
    """
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
