"""Advantages of groups of different sizes. Needs only numpy.

`advantages` handles a batch; each objective has one pure function. It maps rewards (n,) or successes (n,) of
a group of n = G_i rollouts to A (n,). The loss divides by n, so a rollout's gradient is weighted by A/n. A
group without a learning signal has advantage exactly zero."""

import re
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

STD_FLOOR = 1e-4
OBJECTIVES = (
    "grpo",
    "dr_grpo",
    "rloo",
    "max_rl",
    "likelihood",
    "pass_at_k",
    "pkpo",
    "weighted_reinforce",
    "shrunken",
)
"""`shrunken` is written with its numbers r and ρ: `shrunken(10)` or `shrunken(10, 0.75)`."""
BINARY = ("max_rl", "likelihood", "pass_at_k", "weighted_reinforce", "shrunken")
"""Objectives computed from successes; the others use rewards."""
Values = NDArray[np.float64]
Formula = Callable[[Values], Values]


def advantages(
    rewards: ArrayLike,
    owner: ArrayLike,
    objective: str = "grpo",
    successes: ArrayLike | None = None,
    *,
    k: int | None = None,
    positive: float = 0.1,
    wald: bool = False,
    group_size: float | None = None,
    as_if: ArrayLike | None = None,
    per: str = "rollout",
) -> Values:
    """A (n,) for a batch of n rollouts, to replace another trainer's advantages.

    rewards: (n,). owner: (n,) the prompt of each rollout, numbers or names in any order. objective: one of
    `OBJECTIVES`; those in `BINARY` use only `successes` (n,), 0 or 1, which default to the rewards. k: for
    pass_at_k and pkpo. positive: a hit's advantage under weighted_reinforce; a miss has -1. wald: likelihood
    only, subtracts 1/G from every rollout, which keeps the expectation. group_size: G, by default n over the
    number Γ of prompts. as_if: (n,) the group size G'_i that another rule would have given each rollout's
    prompt; multiplies by √(G'_i/G), the control for how allocation changes a prompt's weight.

    per: `rollout` multiplies by n/(Γ G_i), so that a trainer that averages its loss over rollouts (TRL, verl,
    OpenRLHF) computes the gradient of (1/Γ) Σ_i (1/G_i) Σ_j, up to its normalisation of a rollout's tokens;
    for one that averages over all tokens that is the mean length. Pass all rollouts of a step, over all
    processes, and use micro-batches of equal size. `group`: no factor, for a loss that divides by G_i and Γ
    itself.

    >>> advantages([1, 0, 0, 0, 1, 1], owner=[0, 0, 0, 0, 1, 1], objective="likelihood")
    array([3. , 0. , 0. , 0. , 1.5, 1.5])
    >>> advantages([1, 0, 0, 0, 1, 1], owner=[0, 0, 0, 0, 1, 1], objective="rloo", per="group").round(2)
    array([ 1.  , -0.33, -0.33, -0.33,  0.  ,  0.  ])

    Raises ValueError naming the argument and the first invalid index."""
    values, of, sizes = _batch(rewards, owner)
    if family(objective) not in OBJECTIVES:
        raise ValueError(f"objective: {objective!r} is none of {', '.join(OBJECTIVES)}")
    if per not in ("rollout", "group"):
        raise ValueError(f"per: {per!r} is neither rollout nor group")
    if family(objective) in BINARY:
        values = _hits(values if successes is None else successes, len(of), successes is None)
    _check_k(objective, k, of, sizes)
    if wald and objective != "likelihood":
        raise ValueError(f"wald: belongs to objective likelihood, not {objective}")
    size = len(of) / len(sizes) if group_size is None else group_size
    if not (np.isfinite(size) and size > 0):
        raise ValueError(f"group_size must be positive, not {group_size}")
    of_group = formula(objective, k, 1.0 / size if wald else 0.0, positive)
    found = np.empty(len(of))
    for rows in np.split(np.argsort(of, kind="stable"), np.cumsum(sizes)[:-1]):
        found[rows] = of_group(values[rows])
    if as_if is not None:
        found *= size_weight(_vector("as_if", as_if, len(of), least=1.0), size)
    return found if per == "group" else found * (len(of) / (len(sizes) * sizes[of]))


def family(objective: str) -> str:
    """The name in `OBJECTIVES`. Raises ValueError for `shrunken` with bad numbers or none."""
    name = objective.partition("(")[0]
    if name != "shrunken":
        return objective
    _noise_and_overlap(objective)
    return name


def _noise_and_overlap(objective: str) -> tuple[float, float]:
    """r and ρ of `shrunken(10, 0.75)`; ρ is 0 by default."""
    found = re.fullmatch(r"shrunken\(([^,]+?)(?:, *([^,]+))?\)", objective)
    try:
        r, overlap = (float(text or 0) for text in (found.groups() if found else ("nan", "")))
    except ValueError:
        r, overlap = np.nan, 0.0
    if not (0 <= r < np.inf and 0 <= overlap < 1):
        raise ValueError(
            f"objective: {objective!r} needs a hit's noise r from 0, and may have an overlap ρ from 0 to "
            "below 1: shrunken(10) or shrunken(10, 0.75)"
        )
    return r, overlap


def formula(objective: str, k: int | None = None, baseline: float = 0.0, positive: float = 0.1) -> Formula:
    """The function from one group's rewards (n,) to A (n,); from its successes for objectives in `BINARY`."""
    if family(objective) == "shrunken":
        noise, overlap = _noise_and_overlap(objective)
        return partial(shrunken, noise=noise, overlap=overlap)
    formulas: dict[str, Formula] = {
        "grpo": grpo,
        "dr_grpo": centred,
        "rloo": rloo,
        "max_rl": max_rl,
        "likelihood": partial(likelihood, baseline=baseline),
        "pass_at_k": partial(pass_at_k, k=k or 1),
        "pkpo": partial(pkpo, k=k or 2),
        "weighted_reinforce": partial(weighted_reinforce, positive=positive),
    }
    return formulas[objective]


def size_weight(sizes: ArrayLike, group_size: float) -> Values:
    """√(G_i/G), any shape: how a rare prompt's expected grpo update grows with its group size."""
    return np.sqrt(np.asarray(sizes, dtype=np.float64) / group_size)


def centred(rewards: ArrayLike) -> Values:
    """R - mean (Dr.GRPO, 2503.20783); exactly zero if all rewards are equal or n = 1."""
    values = np.asarray(rewards, dtype=np.float64)
    if len(values) < 2 or np.ptp(values) == 0.0:
        return np.zeros(len(values))
    return values - values.mean()


def grpo(rewards: ArrayLike) -> Values:
    """(R - mean)/(std + 1e-4), std with n - 1 as in TRL (paper, 3.1)."""
    values = centred(rewards)
    return values / (values.std(ddof=1) + STD_FLOOR) if values.any() else values


def rloo(rewards: ArrayLike) -> Values:
    """R minus the other rewards' mean (2402.14740): unbiased for the mean reward's gradient at fixed n."""
    values = centred(rewards)
    return values * len(values) / max(1, len(values) - 1)


def rloo_by_phase(rewards: ArrayLike, pre_rollouts: int, share: float) -> Values:
    """RLOO with fixed phase weights: Phase A has `share` = G0/G of the group and Phase B has 1 - G0/G, at any
    group size.

    The first `pre_rollouts` are compared with each other, Phase B with the full group. Phase A determines the
    size of Phase B, so pooling both phases biases the mean; this keeps the expectation of uniform sampling.
    Raises ValueError if there is no Phase B."""
    values = np.asarray(rewards, dtype=np.float64)
    n = len(values)
    if n == pre_rollouts:
        raise ValueError(f"phase_weight unbiased: a group of {n} rollouts has no Phase B")
    own = rloo(values[:pre_rollouts]) * share * n / pre_rollouts
    others = rloo(values)[pre_rollouts:] * (1.0 - share) * n / (n - pre_rollouts)
    return np.concatenate([own, others])


def max_rl(successes: ArrayLike) -> Values:
    """(s - mean)/mean, zero without a hit (MaxRL, 2602.02710): expected Σ_{k<n} ∇Pass@k / k at fixed n."""
    values = centred(successes)
    return values / np.asarray(successes, dtype=np.float64).mean() if values.any() else values


def likelihood(successes: ArrayLike, baseline: float = 0.0) -> Values:
    """n/c for each of c hits, minus n·`baseline` for every rollout: Σ_j A_j/n · score_j is the mean score of
    the hits.

    Its expectation is P(c >= 1) ∇log p for any n chosen from counts only. A constant baseline keeps it if n
    is a stopping time (Wald), so `baseline` is 1/G for all groups, not 1/n."""
    hits = np.asarray(successes, dtype=np.float64)
    return len(hits) * (hits / max(1.0, hits.sum()) - baseline)


def shrunken(successes: ArrayLike, noise: float, overlap: float = 0.0) -> Values:
    """n/((1 - ρ)c + r) for each of c hits, zero for a miss: the best weights of prompts' noisy gradients.

    r is the variance of one hit's score over |∇log p|², ρ the overlap of two prompts' ∇log p
    (`allocator/rules/worth.py`). r = ρ = 0 is `likelihood`; for large r all hits weigh alike, as in a plain
    policy gradient. A constant factor over the batch is left out, as the optimiser's rate has it."""
    hits = np.asarray(successes, dtype=np.float64)
    c = hits.sum()
    return len(hits) * hits / ((1 - overlap) * c + noise) if c else hits


def weighted_reinforce(successes: ArrayLike, positive: float) -> Values:
    """λ for a hit, -1 for a miss (2506.01347): groups without a hit also have a gradient."""
    return np.where(np.asarray(successes, dtype=bool), positive, -1.0)


def pass_at_k(successes: ArrayLike, k: int) -> Values:
    """Closed form of Pass@k training (2508.10751, equations 14 and 15): the mean of (subset's success -
    mean)/std over all k-subsets with the rollout. Raises ValueError if n < k."""
    hits = np.asarray(successes, dtype=bool)
    n, misses = len(hits), int((~hits).sum())
    fail = subsets(misses, k, n)  # probability that a random k-subset holds no hit
    spread = float(np.sqrt(fail * (1.0 - fail)))
    if spread == 0.0:
        return np.zeros(n)
    fail_beside_a_miss = subsets(misses - 1, k - 1, n - 1)
    return np.where(hits, fail, fail - fail_beside_a_miss) / spread


def pkpo(rewards: ArrayLike, k: int) -> Values:
    """n·s_i of PKPO's `sloo_minus_one` (2505.15201, equation 33), also for continuous rewards, in O(n log n).

    s_i is the mean over all k-subsets of [i in subset]·(its maximum - its maximum without i). With ascending
    rewards, i at rank r and C the binomial, this is (r_i C(r, k-1) - Σ_{m<r} r_m C(m, k-2)) / C(n, k). Raises
    ValueError if n < k."""
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
    """C(marked, k)/C(n, k): probability that k of n, drawn without replacement, are all marked."""
    if n < k:
        raise ValueError(f"a group of {n} rollouts has no subset of k = {k}")
    ratios = (marked - np.arange(k)) / (n - np.arange(k))
    return float(np.prod(ratios.clip(min=0.0)))


def _falling(top: int, j: int) -> Values:
    """C(m, j)/C(top, j) for m = 0 .. top, computed downwards by (m - j)/m to avoid overflow."""
    m = np.arange(top, 0, -1, dtype=np.float64)
    steps = ((m - j) / m).clip(min=0.0)
    return np.concatenate([[1.0], np.cumprod(steps)])[::-1]


def _batch(rewards: ArrayLike, owner: ArrayLike) -> tuple[Values, NDArray[np.int64], NDArray[np.int64]]:
    """Rewards (n,), the prompt number of each (n,), and the number of rollouts per prompt (Γ,)."""
    values = _vector("rewards", rewards, np.size(rewards))
    if not len(values):
        raise ValueError("rewards is empty: there is no rollout")
    names = np.asarray(owner)
    if names.shape != values.shape:
        raise ValueError(f"owner must be of shape ({len(values)},) as rewards, not {names.shape}")
    _, of, sizes = np.unique(names, return_inverse=True, return_counts=True)
    return values, of, sizes


def _vector(name: str, given: ArrayLike, n: int, least: float = -np.inf) -> Values:
    """`given` as finite numbers (n,), each at least `least`."""
    values = np.asarray(given, dtype=np.float64)
    if values.shape != (n,):
        raise ValueError(f"{name} must be of shape ({n},), not {values.shape}")
    bad = np.flatnonzero(~np.isfinite(values) | (values < least))
    if bad.size:
        wanted = "finite" if least == -np.inf else f"finite and at least {least:g}"
        raise ValueError(f"{name}[{bad[0]}] = {values[bad[0]]} must be {wanted}")
    return values


def _hits(given: ArrayLike, n: int, are_rewards: bool) -> Values:
    name = "rewards" if are_rewards else "successes"
    values = _vector(name, given, n)
    bad = np.flatnonzero((values != 0) & (values != 1))
    if bad.size:
        remedy = ": this objective counts successes, give them" if are_rewards else ""
        raise ValueError(f"{name}[{bad[0]}] = {values[bad[0]]} must be 0 or 1{remedy}")
    return values


def _check_k(objective: str, k: int | None, of: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
    least = {"pass_at_k": 1, "pkpo": 2}.get(objective)
    if least is None:
        if k is not None:
            raise ValueError(f"k ({k}) belongs to objective pass_at_k or pkpo, not {objective}")
        return
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < least:
        raise ValueError(f"k must be a whole number from {least} for objective {objective}, not {k!r}")
    small = np.flatnonzero(sizes[of] < k)
    if small.size:
        raise ValueError(
            f"k ({k}) exceeds the group of owner[{small[0]}], which has {sizes[of[small[0]]]} rollouts"
        )
