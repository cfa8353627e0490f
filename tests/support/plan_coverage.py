"""How often the intervals of `hora plan` hold the truth, on simulated counts of known rates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from allocator.mixture import GRID
from allocator.posterior import Float
from evaluation.plan.counts import Counts
from evaluation.plan.forecast import Row, forecast
from evaluation.plan.outcome import Arm, outcome

Draw = Callable[[np.random.Generator, int], Float]


def on_grid(rates: Float) -> Float:
    """Weights (K,) on GRID that keep every rate's mean: each is divided between its two neighbours."""
    above = np.clip(np.searchsorted(GRID, rates), 1, len(GRID) - 1)
    low, high = GRID[above - 1], GRID[above]
    part = (rates - low) / (high - low)
    weights = np.bincount(above, weights=part, minlength=len(GRID))
    weights += np.bincount(above - 1, weights=1 - part, minlength=len(GRID))
    return weights / len(rates)


def chosen(trials: int) -> list[Arm]:
    """Four arms at the largest of 16 and 32 that the trials reach."""
    g = min(32, trials)
    kinds = (
        ("uniform", "none", 1),
        ("hit_utility", "none", 1),
        ("first_hit", "hit", 4),
        ("mixed", "mixed", 4),
    )
    return [Arm(rule, stop, rounds, 4, g) for rule, stop, rounds in kinds]


def study(draw: Draw, m: int, trials: int, repeats: int) -> tuple[float, ...]:
    """Coverage of hits, of the gain over uniform and of signal; mean width and bias of hits, in points."""
    truth = on_grid(draw(np.random.default_rng(99), 400_000))
    rng, arms = np.random.default_rng(7), chosen(trials)
    true = [(float(truth @ o.hits), float(truth @ o.signal)) for o in (outcome(arm, truth) for arm in arms)]
    inside, width, bias = [], [], []
    for _ in range(repeats):
        counts = rng.binomial(trials, draw(rng, m))
        rows = forecast(Counts(counts, np.full(m, trials), None), arms).rows
        inside.append([holds(row, *t, true[0][0]) for row, t in zip(rows, true, strict=True)])
        width.append([row.hits_high - row.hits_low for row in rows])
        bias.append([row.hits - hit for row, (hit, _) in zip(rows, true, strict=True)])
    held = np.array(inside)  # (repeats, arms, 3); the gain of uniform over itself is no test
    hits, signal, gain = held[:, :, 0].mean(), held[:, :, 1].mean(), held[:, 1:, 2].mean()
    return float(hits), float(gain), float(signal), 100 * float(np.mean(width)), 100 * float(np.mean(bias))


def holds(row: Row, hits: float, signal: float, uniform: float) -> tuple[bool, bool, bool]:
    """Whether the intervals of hits, of signal and of the gain over uniform hold."""
    return (
        row.hits_low <= hits <= row.hits_high,
        row.signal_low <= signal <= row.signal_high,
        row.gain_low <= hits - uniform <= row.gain_high,
    )
