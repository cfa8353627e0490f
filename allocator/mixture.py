"""The distribution of success rates behind recorded counts: the nonparametric maximum-likelihood mixture
(NPMLE).

Counts of a few dozen trials say little about one prompt's rate and much about how rates are distributed. The
mixture lives on a fixed grid, even in the logit, with atoms at 0 and 1: prompts that are never and always
solved (Kiefer and Wolfowitz, 1956; fitted by expectation-maximisation).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hora_rl.allocator.posterior import Float, Int

GRID: Float = np.concatenate([[0.0], 1 / (1 + np.exp(-np.linspace(-8, 8, 65))), [1.0]])
"""Rates (K,) that a mixture has weight on."""
STEPS = 200


def log_binomial(trials: Int | int, successes: Int, rate: Float) -> Float:
    """log of the probability of that many successes, without the binomial coefficient; shapes broadcast."""
    with np.errstate(divide="ignore", invalid="ignore"):
        hits = np.where(successes > 0, successes * np.log(rate), 0.0)
        misses = np.where(trials - successes > 0, (trials - successes) * np.log1p(-rate), 0.0)
    return np.asarray(hits + misses)


def fit_mixture(successes: Int, trials: Int) -> Float:
    """Weights (K,) on GRID of the highest likelihood of counts (m,)."""
    pairs, times = np.unique(np.column_stack([successes, trials]), axis=0, return_counts=True)
    return _weights(pairs, times[None, :].astype(np.float64))[0]


def resampled_mixtures(successes: Int, trials: Int, samples: int, seed: int = 0) -> Float:
    """Weights (samples, K), each fitted to as many prompts drawn with replacement."""
    pairs, times = np.unique(np.column_stack([successes, trials]), axis=0, return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(len(successes), times / len(successes), size=samples)
    return _weights(pairs, drawn.astype(np.float64))


def responsibilities(successes: Int, trials: Int, weights: Float) -> Float:
    """(m, K) how probable each rate of GRID is for each prompt, given its counts."""
    joint = _likelihood(successes, trials) * weights
    return np.asarray(joint / joint.sum(1, keepdims=True))


def _likelihood(successes: Int, trials: Int) -> Float:
    """(m, K), scaled to a largest value of 1 in each row so that long records do not underflow."""
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
