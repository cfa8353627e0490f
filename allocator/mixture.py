"""The distribution of success rates behind recorded counts (nonparametric maximum likelihood, NPMLE).

A few dozen trials tell little about one prompt but much about the distribution of rates. The mixture has a
fixed grid, even in the logit, with atoms at 0 and 1 for prompts that are never or always solved (Kiefer and
Wolfowitz, 1956; fitted by expectation-maximisation).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hora_rl.allocator.posterior import Float, Int

GRID: Float = np.concatenate([[0.0], 1 / (1 + np.exp(-np.linspace(-8, 8, 65))), [1.0]])
"""Rates (K,) of the mixture."""
STEPS = 200


def log_binomial(trials: Int | int, successes: Int, rate: Float) -> Float:
    """Log-probability of `successes` without the binomial coefficient; shapes broadcast."""
    with np.errstate(divide="ignore", invalid="ignore"):
        hits = np.where(successes > 0, successes * np.log(rate), 0.0)
        misses = np.where(trials - successes > 0, (trials - successes) * np.log1p(-rate), 0.0)
    return np.asarray(hits + misses)


def fit_mixture(successes: Int, trials: Int) -> Float:
    """Maximum-likelihood weights (K,) on GRID for counts (m,)."""
    pairs, times = np.unique(np.column_stack([successes, trials]), axis=0, return_counts=True)
    return _weights(pairs, times[None, :].astype(np.float64))[0]


def resampled_mixtures(successes: Int, trials: Int, samples: int, seed: int = 0) -> Float:
    """Weights (samples, K), each fitted to m prompts drawn with replacement."""
    pairs, times = np.unique(np.column_stack([successes, trials]), axis=0, return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(len(successes), times / len(successes), size=samples)
    return _weights(pairs, drawn.astype(np.float64))


def _likelihood(successes: Int, trials: Int) -> Float:
    """(m, K), scaled to a row maximum of 1 against underflow."""
    log = log_binomial(trials[:, None], successes[:, None], GRID[None, :])
    return np.asarray(np.exp(log - log.max(1, keepdims=True)))


def _weights(pairs: NDArray[np.int64], times: Float) -> Float:
    """(B, K) for counts `pairs` (U, 2) seen `times` (B, U)."""
    likelihood = _likelihood(pairs[:, 0], pairs[:, 1])
    weights = np.full((len(times), len(GRID)), 1 / len(GRID))
    share = times / times.sum(1, keepdims=True)
    for _ in range(STEPS):
        weights *= (share / (weights @ likelihood.T)) @ likelihood
    return np.asarray(weights / weights.sum(1, keepdims=True))
