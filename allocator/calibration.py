"""Reliability and log-loss of a prior's predictions before Phase A, for any recorded run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hora_rl.allocator.posterior import Float, Int


@dataclass(frozen=True, slots=True, eq=False)
class Reliability:
    """Predicted and observed success rate and number of prompts of each non-empty bin, all (bins,)."""

    predicted: Float
    observed: Float
    prompts: Int


def reliability(rate: Float, successes: Int, trials: Int, bins: int = 10) -> Reliability:
    """Bins of equal width over p̂. rate (n,) = α0/(α0+β0) before Phase A; successes and trials (n,) after."""
    bin_of = np.minimum((rate * bins).astype(np.int64), bins - 1)
    prompts = np.bincount(bin_of, minlength=bins)
    held = prompts > 0
    sums = [np.bincount(bin_of, weights=w, minlength=bins)[held] for w in (rate, successes, trials)]
    return Reliability(sums[0] / prompts[held], sums[1] / sums[2], prompts[held])


def log_loss(rate: Float, successes: Int, trials: Int) -> float:
    """Mean negative log-likelihood per rollout, in nats; a fair coin's is 0.693. rate (n,) in (0, 1)."""
    if not np.all((rate > 0) & (rate < 1)):
        raise ValueError("rate: every p̂ must be strictly between 0 and 1, or its log-loss is not finite")
    nll = -successes * np.log(rate) - (trials - successes) * np.log1p(-rate)
    return float(np.sum(nll) / np.sum(trials))
