"""CoBA-RL (Yao et al., arXiv 2602.03048, and its code): a value that follows the model's capability.

V(N, p) = (1 - exp(-N p(1-p)/τ)) · Beta(p; a, 7 - a), p clipped to 0.01..0.99. The batch's failure share f
sets a = 1 + 5f; for f <= 1/2 it is first squashed to 1/(1 + exp(-10(f - 1/2))). τ rises from 3 to 12 with the
variance of the rates. Prompts with 0.05 <= p <= 0.99 share 60 to 80% of the budget by the highest gain in V.
The rest goes, in proportion to 1 - p, to prompts below 0.05; if there are none, to the first kind; else to
the remaining ones.

The paper takes rates and f from a window of three steps; here they come from this shard's rollouts so far.
Its bounds on N are G0 and `max_group_size`.
"""

from __future__ import annotations

import numpy as np

from hora_rl.allocator.posterior import Float, Int, Posterior
from hora_rl.allocator.rules.base import Division, Marginal, Part, Sampled, Split, level_up
from hora_rl.allocator.special import log_gamma

TAU = (3.0, 12.0)
LARGEST_VARIANCE = 0.1667
SUM = 7.0
HARD, EASY = 0.05, 0.99
SHARES = (0.6, 0.8)


def _clipped(rate: Float) -> Float:
    return np.clip(rate, 0.01, 0.99)


def shape(rates: Float) -> tuple[float, float]:
    """(a, b) of the Beta density over rates, from the batch's rates (n,)."""
    failures = 1 - float(np.mean(rates))
    if failures <= 0.5:
        failures = 1 / (1 + float(np.exp(-10 * (failures - 0.5))))
    a = min(max(1 + (SUM - 2) * failures, 1.0), SUM - 1)
    return a, SUM - a


def temperature(rates: Float) -> float:
    """τ from the rates (n,) of prompts that share by value."""
    spread = float(np.var(_clipped(rates))) / LARGEST_VARIANCE
    return TAU[0] + (TAU[1] - TAU[0]) * min(spread, 1.0)


def value(ab: tuple[float, float], tau: float) -> Marginal:
    """The rule that maximises V."""
    a, b = (np.asarray(x) for x in ab)
    constant = log_gamma(a + b) - log_gamma(a) - log_gamma(b)

    def table(posterior: Posterior, depth: int) -> Float:
        p = _clipped(posterior.successes / posterior.trials)[:, None]
        decay = p * (1 - p) / tau
        density = (a - 1) * np.log(p) + (b - 1) * np.log1p(-p) + constant
        size = posterior.trials[:, None] + np.arange(depth)
        return np.asarray(density - size * decay + np.log(-np.expm1(-decay)))

    return Marginal("coba_rl_value", table)


def _by_failures(sampled: Sampled, room: Int, budget: int) -> Int:
    """In proportion to 1 - p, rounded down and within room; the remainder evenly."""
    weight = 1 - np.clip(sampled.successes / sampled.trials, 1e-6, 1 - 1e-6)
    shares = np.minimum((budget * weight / weight.sum()).astype(np.int64), room)
    return shares + level_up(
        np.zeros_like(room), sampled.successes, room - shares, budget - int(shares.sum())
    )


REST = Division("coba_rl_rest", _by_failures)


def _parts(sampled: Sampled, room: Int, budget: int) -> list[Part]:
    rates = sampled.successes / sampled.trials
    hard, easy = rates < HARD, rates > EASY
    middle = ~(hard | easy)
    parts: list[Part] = []
    first = 0
    if middle.any():
        share = SHARES[0] + (SHARES[1] - SHARES[0]) * min(1.0, 2 * float(middle.mean()))
        first = min(int(budget * share), int(room[middle].sum()))
        parts.append((middle, value(shape(rates), temperature(rates[middle])), first))
    for among in (hard, middle, easy):
        if among.any():
            parts.append((among, REST, budget - first))
    return parts


COBA_RL = Split("coba_rl", _parts, least_trials=1)
