"""The distribution of success rates behind counts, and what an arm makes of prompts of every rate.

A few dozen trials tell little about one prompt but much about the distribution of rates. The mixture has a
fixed grid, even in the logit, with atoms at 0 and 1: the nonparametric maximum likelihood (Kiefer and
Wolfowitz, 1956), fitted by expectation-maximisation.

The outcome of an arm is exact for a large batch, without sampling, so rules compare to the last digit. The
allocator divides each round's budget over states, a prompt's successes and rollouts, in the shares given by
the mixture, and every state moves by a binomial."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hora_rl.allocator.posterior import Float, Int
from hora_rl.allocator.rules import get_rule
from hora_rl.allocator.rules.base import Sampled
from hora_rl.allocator.session import tiers
from hora_rl.allocator.solver import Problem, serve

GRID: Float = np.concatenate([[0.0], 1 / (1 + np.exp(-np.linspace(-8, 8, 65))), [1.0]])
"""Rates (K,) of the mixture."""
STEPS = 200
PROMPTS = 20_000  # prompts that represent the batch, plus PER_STATE per state
PER_STATE = 8
RARE = 1e-6
"""States of a smaller share of prompts get the mean of a round: where the others want nothing more, those few
would take a whole batch."""
LARGEST = 32
"""The largest group, in G: more is not to be had in a batch, and all its states would fill the memory."""
PRUNED = 3e-5  # states below this probability at every rate are dropped: costs 0.02 points of hits


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


def _weights(pairs: NDArray[np.int64], times: Float) -> Float:
    """(B, K) for counts `pairs` (U, 2) seen `times` (B, U)."""
    log = log_binomial(pairs[:, 1:], pairs[:, :1], GRID[None, :])
    likelihood = np.exp(log - log.max(1, keepdims=True))  # a row maximum of 1 against underflow
    weights = np.full((len(times), len(GRID)), 1 / len(GRID))
    share = times / times.sum(1, keepdims=True)
    for _ in range(STEPS):
        weights *= (share / (weights @ likelihood.T)) @ likelihood
    return np.asarray(weights / weights.sum(1, keepdims=True))


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to spend Γ·G rollouts: rule, stop, rounds R, pre-rollouts G0 and mean group size G."""

    rule: str
    stop: str
    rounds: int
    pre_rollouts: int
    group_size: int


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """Per rate of GRID, all (K,): P(hit), P(mixed group), mean group size."""

    hits: Float
    signal: Float
    size: Float


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """States (S,), and the `probability` (K, S) of each state at each rate."""

    successes: Int
    trials: Int
    probability: Float


def outcome(arm: Arm, weights: Float) -> Outcome:
    """The outcome of `arm` in a large batch with rates distributed by `weights` (K,) on GRID."""
    states = phase_a(arm.pre_rollouts)
    left = float(arm.group_size - arm.pre_rollouts)
    for later in range(arm.rounds, 0, -1):
        share = left / later
        states = _advance(states, _mean_extra(arm, states, weights, share))
        left -= share
    return _summary(states)


def phase_a(pre_rollouts: int) -> States:
    """The states after that many rollouts of every prompt."""
    c = np.arange(pre_rollouts + 1)
    return States(c, np.full(len(c), pre_rollouts), _binomial(np.full(len(c), pre_rollouts), c))


def _binomial(trials: Int, successes: Int) -> Float:
    """(K, E) probabilities at each rate of GRID."""
    factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, int(trials.max()) + 1)))])  # log n!
    choose = factorial[trials] - factorial[successes] - factorial[trials - successes]
    return np.asarray(np.exp(choose + log_binomial(trials, successes, GRID[:, None])))


def _mean_extra(arm: Arm, states: States, weights: Float, share: float) -> Float:
    """(S,) mean rollouts that a prompt in each state gets in a round of `share` rollouts per prompt."""
    weight = weights @ states.probability
    members = np.floor((PROMPTS + PER_STATE * len(weight)) * weight).astype(np.int64) + (weight > RARE)
    of = np.repeat(np.arange(len(members)), members)
    pre = np.int64(arm.pre_rollouts)
    sampled = Sampled(states.successes[of], states.trials[of], states.trials[of] - pre)
    problem = Problem(sampled, (1.0, 1.0), LARGEST * arm.group_size)
    extra = serve(problem, tiers(get_rule(arm.rule), arm.stop, sampled), round(share * len(of)))
    total = np.bincount(of, weights=extra, minlength=len(members))
    return np.where(members > 0, total / np.maximum(members, 1), share)


def _advance(states: States, extra: Float) -> States:
    """States after a round: each member gets `extra` rounded down or up."""
    low = np.floor(extra).astype(np.int64)
    high = extra - low
    state = np.concatenate([np.arange(len(low)), np.flatnonzero(high > 0)])
    extra_of = np.concatenate([low, low[high > 0] + 1])
    part = np.concatenate([1 - high, high[high > 0]])
    branch = np.repeat(np.arange(len(state)), extra_of + 1)
    first = np.cumsum(extra_of + 1) - (extra_of + 1)
    hits = np.arange(len(branch)) - first[branch]
    moved = states.probability[:, state[branch]] * part[branch] * _binomial(extra_of[branch], hits)
    return _merged(states.successes[state[branch]] + hits, (states.trials[state] + extra_of)[branch], moved)


def _merged(successes: Int, trials: Int, probability: Float) -> States:
    width = int(trials.max()) + 1
    keys, of = np.unique(successes * width + trials, return_inverse=True)
    order = np.argsort(of, kind="stable")
    starts = np.searchsorted(of[order], np.arange(len(keys)))
    summed = np.add.reduceat(probability[:, order], starts, axis=1)
    kept = summed.max(axis=0) > PRUNED
    return States(keys[kept] // width, keys[kept] % width, summed[:, kept])


def _summary(states: States) -> Outcome:
    c, n, probability = states.successes, states.trials, states.probability
    total = probability.sum(axis=1)  # 1 without pruning
    mixed = (c > 0) & (c < n)
    hits, signal, size = (probability @ v / total for v in ((c > 0) * 1.0, mixed * 1.0, n * 1.0))
    return Outcome(hits, signal, size)
