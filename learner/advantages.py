"""Advantages of one ragged group: one small pure function each.

A (n,) from rewards (n,) or successes (n,) of one group of n = G_i rollouts. The loss divides by n, so that a
rollout's gradient carries A/n. A group that cannot teach has advantage exactly zero.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

STD_FLOOR = 1e-4
Values = NDArray[np.float64]


def centred(rewards: ArrayLike) -> Values:
    """R - mean (Dr.GRPO, 2503.20783); exactly zero where all rewards are equal or there is one alone."""
    values = np.asarray(rewards, dtype=np.float64)
    if len(values) < 2 or np.ptp(values) == 0.0:
        return np.zeros(len(values))
    return values - values.mean()


def grpo(rewards: ArrayLike) -> Values:
    """(R - mean)/(std + 1e-4), std with n - 1 as in TRL (paper, 3.1)."""
    values = centred(rewards)
    return values / (values.std(ddof=1) + STD_FLOOR) if values.any() else values


def rloo(rewards: ArrayLike) -> Values:
    """R minus the mean of the others (2402.14740): unbiased for the gradient of the mean reward at any fixed
    n."""
    values = centred(rewards)
    return values * len(values) / max(1, len(values) - 1)


def rloo_by_phase(rewards: ArrayLike, pre_rollouts: int, share: float) -> Values:
    """RLOO whose phases carry `share` = G0/G and 1 - G0/G of the group, whatever the group's size.

    The first `pre_rollouts` are compared with each other, the others with the whole group. Phase B's size is
    decided by Phase A, so pooling both biases the mean; here the expectation is that of uniform sampling.
    Raises ValueError without a Phase B: nothing else can carry its share.
    """
    values = np.asarray(rewards, dtype=np.float64)
    n = len(values)
    if n == pre_rollouts:
        raise ValueError(f"phase_weight unbiased: a group of {n} rollouts has no Phase B")
    own = rloo(values[:pre_rollouts]) * share * n / pre_rollouts
    others = rloo(values)[pre_rollouts:] * (1.0 - share) * n / (n - pre_rollouts)
    return np.concatenate([own, others])


def max_rl(successes: ArrayLike) -> Values:
    """(s - mean)/mean, zero where none succeeded (MaxRL, 2602.02710): expected Σ_{k<n} ∇Pass@k / k for a
    fixed n."""
    values = centred(successes)
    return values / np.asarray(successes, dtype=np.float64).mean() if values.any() else values


def likelihood(successes: ArrayLike, baseline: float = 0.0) -> Values:
    """n/c for each of c hits, minus n·`baseline` for every rollout: Σ_j A_j/n · score_j is the hits' mean
    score.

    Its expectation is P(c >= 1) ∇log p whatever decided n, as long as that looked at counts only. A constant
    baseline keeps it when n is a stopping time (Wald): `baseline` is 1/G for all groups, not 1/n.
    """
    hits = np.asarray(successes, dtype=np.float64)
    return len(hits) * (hits / max(1.0, hits.sum()) - baseline)


def weighted_reinforce(successes: ArrayLike, positive: float) -> Values:
    """λ for a hit, -1 for a miss (2506.01347): groups without a hit teach too."""
    return np.where(np.asarray(successes, dtype=bool), positive, -1.0)


def pass_at_k(successes: ArrayLike, k: int) -> Values:
    """Pass@k training's closed form (2508.10751, equations 14 and 15): the mean over all k-subsets that hold
    a rollout of (subset's success - mean)/std. Raises ValueError where the group is smaller than k."""
    hits = np.asarray(successes, dtype=bool)
    n, misses = len(hits), int((~hits).sum())
    fail = subsets(misses, k, n)  # probability that a random k-subset holds no hit
    spread = float(np.sqrt(fail * (1.0 - fail)))
    if spread == 0.0:
        return np.zeros(n)
    fail_beside_a_miss = subsets(misses - 1, k - 1, n - 1)
    return np.where(hits, fail, fail - fail_beside_a_miss) / spread


def pkpo(rewards: ArrayLike, k: int) -> Values:
    """n·s_i of PKPO's `sloo_minus_one` (2505.15201, equation 33), continuous rewards too, in O(n log n).

    s_i is the mean over all k-subsets of [i in it]·(its maximum - its maximum without i). With rewards
    ascending, i at rank r and C the binomial, that is (r_i C(r, k-1) - Σ_{m<r} r_m C(m, k-2)) / C(n, k).
    Raises ValueError where n < k.
    """
    values = np.asarray(rewards, dtype=np.float64)
    n = len(values)
    if n < k:
        raise ValueError(f"a group of {n} rollouts has no subset of k = {k}")
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    # C(m, k-1) and C(m, k-2) over C(n, k) for m = 0 .. n-1; C(n-1, k-1)/C(n, k) = k/n.
    to_own = _falling(n - 1, k - 1) * k / n
    below = _falling(n - 1, k - 2) * (k / n) * (k - 1) / (n - k + 1)
    running = np.concatenate([[0.0], np.cumsum(ascending * below)[:-1]])
    advantage = np.empty(n)
    advantage[order] = n * (ascending * to_own - running)
    return advantage


def subsets(marked: int, k: int, n: int) -> float:
    """C(marked, k)/C(n, k): probability that k of n drawn without repetition are all among the marked."""
    if n < k:
        raise ValueError(f"a group of {n} rollouts has no subset of k = {k}")
    ratios = (marked - np.arange(k)) / (n - np.arange(k))
    return float(np.prod(ratios.clip(min=0.0)))


def _falling(top: int, j: int) -> Values:
    """C(m, j)/C(top, j) for m = 0 .. top: downwards by (m - j)/m, so that nothing overflows."""
    m = np.arange(top, 0, -1, dtype=np.float64)
    steps = ((m - j) / m).clip(min=0.0)
    return np.concatenate([[1.0], np.cumprod(steps)])[::-1]
