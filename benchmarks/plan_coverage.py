"""How often the intervals of `hora plan` hold the truth: simulated counts of known distributions of rates.

    python -m benchmarks.plan_coverage [--repeats 100]

One line a distribution, number of prompts m and of trials n: coverage of the 90% intervals of hits and signal
over four arms, their mean width, and the bias of the prediction, in points.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from allocator.mixture import GRID
from allocator.posterior import Float
from evaluation.plan.counts import Counts
from evaluation.plan.forecast import Row, forecast
from evaluation.plan.outcome import Arm, outcome

Draw = Callable[[np.random.Generator, int], Float]
TRUTHS: dict[str, Draw] = {
    "Beta(.323, .143)": lambda rng, m: rng.beta(0.323, 0.143, m),
    "Beta(.504, 1.322)": lambda rng, m: rng.beta(0.504, 1.322, m),
    "log-uniform 1/300..1": lambda rng, m: np.exp(rng.uniform(np.log(1 / 300), 0, m)),
    "25% never, Beta(.6, .6)": lambda rng, m: np.where(rng.random(m) < 0.25, 0.0, rng.beta(0.6, 0.6, m)),
    "Beta(.255, 9.549)": lambda rng, m: rng.beta(0.255, 9.549, m),
}
SIZES = ((100, 16), (300, 16), (300, 64), (1000, 16), (1000, 64))


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=100)
    repeats = parser.parse_args().repeats
    print(
        "| rates | m | n | hits held | gain held | signal held | width, points | bias, points |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|"
    )
    for name, draw in TRUTHS.items():
        for m, trials in SIZES:
            hits, gain, signal, width, bias = study(draw, m, trials, repeats)
            print(
                f"| {name} | {m} | {trials} | {hits:.2f} | {gain:.2f} | {signal:.2f} "
                f"| {width:.1f} | {bias:+.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
