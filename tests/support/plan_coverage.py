"""How often the intervals of `hora plan` hold the truth, on simulated counts of known rates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hora_rl.allocator.mixture import GRID
from hora_rl.allocator.planning.forecast import forecast
from hora_rl.allocator.planning.outcome import Arm, outcome
from hora_rl.allocator.planning.table import Row
from hora_rl.allocator.posterior import Float

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


def study(draw: Draw, m: int, trials: int, repeats: int) -> tuple[Float, float, float]:
    """Coverage (arms, 4) of hits, of the gain over uniform, of the equal uniform G and of signal; mean width
    and bias of hits, in points."""
    truth = on_grid(draw(np.random.default_rng(99), 400_000))
    rng, arms = np.random.default_rng(7), chosen(trials)
    true = [(float(truth @ o.hits), float(truth @ o.signal)) for o in (outcome(arm, truth) for arm in arms)]
    uniform = 1 - truth @ (1 - GRID[:, None]) ** np.arange(1, trials + 1)
    inside, width, bias = [], [], []
    for _ in range(repeats):
        counts = rng.binomial(trials, draw(rng, m))
        rows = forecast(counts, np.full(m, trials), arms).rows
        inside.append([holds(row, *t, uniform) for row, t in zip(rows, true, strict=True)])
        width.append([row.hits_high - row.hits_low for row in rows])
        bias.append([row.hits - hit for row, (hit, _) in zip(rows, true, strict=True)])
    return np.mean(inside, axis=0), 100 * float(np.mean(width)), 100 * float(np.mean(bias))


def holds(row: Row, hits: float, signal: float, uniform: Float) -> tuple[bool, ...]:
    """Whether each interval holds. `uniform` (trials,): true hits of uniform sampling at G = 1, 2, …"""
    same = int(np.searchsorted(uniform, hits - 1e-6)) + 1
    least, most = (g or len(uniform) + 1 for g in (row.uniform_group_size_low, row.uniform_group_size_high))
    return (
        row.hits_low <= hits <= row.hits_high,
        row.gain_low <= hits - uniform[row.group_size - 1] <= row.gain_high,
        least <= same <= most,
        row.signal_low <= signal <= row.signal_high,
    )
