"""Advantages of groups of different sizes, for another trainer. Needs only numpy.

A formula (`hora_rl.common.algorithms`) maps rewards (n,) or successes (n,) of a group of n = G_i rollouts to
A (n,). The loss divides by n, so a rollout's gradient is weighted by A/n. A group without a learning signal
has advantage exactly zero."""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hora_rl.common.algorithms import ADVANTAGES, advantage_of
from hora_rl.common.algorithms.base import Algorithm, Values
from hora_rl.common.user_code import is_user_function

Formula = Callable[[Values], Values]


def advantages(
    rewards: ArrayLike,
    owner: ArrayLike,
    objective: str = "grpo",
    successes: ArrayLike | None = None,
    *,
    k: int | None = None,
    wald: bool = False,
    group_size: float | None = None,
    as_if: ArrayLike | None = None,
    per: str = "rollout",
) -> Values:
    """A (n,) for a batch of n rollouts, to replace another trainer's advantages.

    rewards: (n,). owner: (n,) the prompt of each rollout, numbers or names in any order. objective: one of
    `hora_rl.common.algorithms.ADVANTAGES`; those that count successes use only `successes` (n,), 0 or 1,
    which default to the rewards. k: for pass_at_k and pkpo. wald: likelihood only, subtracts 1/G from every
    rollout, which keeps the expectation. group_size: G, by default n over the number Γ of prompts.
    as_if: (n,) the group size G'_i that another rule would have given each rollout's prompt; multiplies by
    √(G'_i/G), the control for how allocation changes a prompt's weight.

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
    algorithm = _built_in(objective)
    if per not in ("rollout", "group"):
        raise ValueError(f"per: {per!r} is neither rollout nor group")
    if algorithm.counts:
        values = _hits(values if successes is None else successes, len(of), successes is None)
    _check_k(objective, algorithm.least_k, k, of, sizes)
    if wald and not algorithm.has_baseline:
        raise ValueError(f"wald: belongs to objective likelihood, not {objective}")
    size = len(of) / len(sizes) if group_size is None else group_size
    if not (np.isfinite(size) and size > 0):
        raise ValueError(f"group_size must be positive, not {group_size}")
    of_group = formula(algorithm, k, 1.0 / size if wald else 0.0)
    result = np.empty(len(of))
    for rows in np.split(np.argsort(of, kind="stable"), np.cumsum(sizes)[:-1]):
        result[rows] = of_group(values[rows])
    if as_if is not None:
        result *= size_weight(_vector("as_if", as_if, len(of), least=1.0), size)
    return result if per == "group" else result * (len(of) / (len(sizes) * sizes[of]))


def formula(objective: str | Algorithm, k: int | None = None, baseline: float = 0.0) -> Formula:
    """The function from one group's rewards (n,), or successes if the algorithm counts them, to A (n,)."""
    algorithm = _built_in(objective) if isinstance(objective, str) else objective
    assert algorithm.advantage is not None
    keys: dict[str, float] = {"k": k or algorithm.least_k} if algorithm.least_k else {}
    return partial(algorithm.advantage, **keys, **({"baseline": baseline} if algorithm.has_baseline else {}))


def size_weight(sizes: ArrayLike, group_size: float) -> Values:
    """√(G_i/G), any shape: how a rare prompt's expected grpo update grows with its group size."""
    return np.sqrt(np.asarray(sizes, dtype=np.float64) / group_size)


def _built_in(objective: str) -> Algorithm:
    if is_user_function(objective):
        raise ValueError(f"objective: {objective!r} is none of {', '.join(ADVANTAGES)}")
    try:
        return advantage_of(objective)
    except ValueError as error:
        raise ValueError(f"objective: {error}") from None


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


def _vector(name: str, numbers: ArrayLike, n: int, least: float = -np.inf) -> Values:
    """`numbers` as finite numbers (n,), each at least `least`."""
    values = np.asarray(numbers, dtype=np.float64)
    if values.shape != (n,):
        raise ValueError(f"{name} must be of shape ({n},), not {values.shape}")
    bad = np.flatnonzero(~np.isfinite(values) | (values < least))
    if bad.size:
        wanted = "finite" if least == -np.inf else f"finite and at least {least:g}"
        raise ValueError(f"{name}[{bad[0]}] = {values[bad[0]]} must be {wanted}")
    return values


def _hits(numbers: ArrayLike, n: int, are_rewards: bool) -> Values:
    name = "rewards" if are_rewards else "successes"
    values = _vector(name, numbers, n)
    bad = np.flatnonzero((values != 0) & (values != 1))
    if bad.size:
        remedy = ": this objective counts successes, give them" if are_rewards else ""
        raise ValueError(f"{name}[{bad[0]}] = {values[bad[0]]} must be 0 or 1{remedy}")
    return values


def _check_k(
    objective: str, least: int, k: int | None, of: NDArray[np.int64], sizes: NDArray[np.int64]
) -> None:
    if not least:
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
