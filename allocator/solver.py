"""The one exact solver: give a budget of rollouts where the marginal gain is highest (paper, proposition 1).

    maximise Σ_i U_i(Δ_i)   subject to   Σ_i Δ_i = budget,  0 <= Δ_i <= room_i

Every U_i is concave, so the optimum is the `budget` highest marginal gains. No loop over rollouts: with a shared prior
the order of gains is known beforehand (`blocks`), with a prior per prompt a threshold on the gain is searched
(`threshold`) and only a thin band around it is sorted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from allocator.blocks import allocate_shared
from allocator.posterior import Float, Int, posterior
from allocator.rules import get_rule
from allocator.rules.base import Division
from allocator.threshold import allocate_each


def allocate(
    successes: ArrayLike,
    trials: ArrayLike,
    budget: int,
    prior: tuple[ArrayLike, ArrayLike] = (1.0, 1.0),
    rule: str = "hit_utility",
    max_group_size: int | None = None,
) -> NDArray[np.int64]:
    """Divide `budget` extra rollouts over n prompts: Δ (n,) int64, summing to `budget` exactly.

    successes: (n,) correct pre-rollouts c_i, 0..trials. trials: G0, an int or (n,). prior: (α0, β0), numbers or
    (n,) arrays, positive and finite. rule: a name, or `package.module:function`. max_group_size: cap on
    G_i = trials + Δ_i. Ties go to the prompt with fewer successes, then to the lower index.

    Raises ValueError naming the argument and the first offending index.
    """
    c = _counts("successes", successes)
    g0 = _trials(trials, c)
    _budget(budget, c, g0, max_group_size)
    chosen = get_rule(rule)
    if budget == 0:
        return np.zeros(len(c), dtype=np.int64)
    if isinstance(chosen, Division):
        room = _room(g0, len(c), budget, max_group_size)
        return chosen.divide(c, room, budget)
    least = chosen.least_trials
    if least and int(np.min(g0)) < least:
        raise ValueError(
            f"trials: rule {rule} is defined from {least} pre-rollouts on, not {int(np.min(g0))}"
        )
    alpha, beta = _prior(prior, len(c))
    if isinstance(alpha, float) and isinstance(beta, float) and g0.ndim == 0:
        room_each = None if max_group_size is None else max_group_size - int(g0)
        return allocate_shared(chosen, c, int(g0), (alpha, beta), budget, room_each)
    n = len(c)
    full = posterior(c, _wide(g0, n), _wide(alpha, n), _wide(beta, n))
    return allocate_each(chosen, full, budget, _room(g0, n, budget, max_group_size))


def _wide(value: Any, n: int) -> Any:
    return np.broadcast_to(np.asarray(value), (n,)).copy()


def _room(trials: Int, n: int, budget: int, cap: int | None) -> Int:
    return np.full(n, budget) if cap is None else np.broadcast_to(cap - trials, (n,)).astype(np.int64)


def _counts(name: str, values: ArrayLike) -> Int:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"{name} must be integers of shape (n,), not {array.dtype} of shape {array.shape}")
    if array.size == 0:
        raise ValueError(f"{name} is empty: there is no prompt to give rollouts to")
    return array.astype(np.int64, copy=False)


def _trials(trials: ArrayLike, c: Int) -> Int:
    g0 = np.asarray(trials)
    if g0.dtype.kind not in "iu" or g0.ndim > 1 or (g0.ndim == 1 and g0.shape != c.shape):
        raise ValueError(
            f"trials must be an int or integers of shape {c.shape}, not {g0.dtype} of shape {g0.shape}"
        )
    g0 = g0.astype(np.int64, copy=False)
    if int(g0.min()) < 0:
        raise ValueError(f"trials[{int(np.argmin(g0))}] = {int(g0.min())} must not be negative")
    if int(c.min()) < 0 or bool((c > g0).any()):
        i = int(np.flatnonzero((c < 0) | (c > g0))[0])
        raise ValueError(
            f"successes[{i}] = {c[i]} must be in 0..trials = {int(np.broadcast_to(g0, c.shape)[i])}"
        )
    return g0


def _budget(budget: int, c: Int, g0: Int, cap: int | None) -> None:
    if isinstance(budget, bool) or not isinstance(budget, int | np.integer) or budget < 0:
        raise ValueError(f"budget must be a whole number from 0, not {budget!r}")
    if cap is None:
        return
    room = np.broadcast_to(cap - g0, c.shape)
    if int(room.min()) < 0:
        i = int(np.argmin(room))
        raise ValueError(
            f"max_group_size ({cap}) is below trials[{i}] = {int(np.broadcast_to(g0, c.shape)[i])}"
        )
    if int(room.sum()) < budget:
        raise ValueError(
            f"budget ({budget}) exceeds what max_group_size ({cap}) leaves room for: {int(room.sum())}"
        )


def _prior(prior: tuple[ArrayLike, ArrayLike], n: int) -> tuple[float | Float, float | Float]:
    if len(prior) != 2:
        raise ValueError(f"prior must be a pair (alpha, beta), not {len(prior)} values")
    checked: list[Any] = []
    for name, value in zip(("alpha", "beta"), prior, strict=True):
        array = np.asarray(value, dtype=np.float64)
        if array.ndim > 1 or (array.ndim == 1 and len(array) != n):
            raise ValueError(f"prior {name} must be a number or of shape ({n},), not {array.shape}")
        bad = np.flatnonzero(~(np.isfinite(array) & (array > 0)))
        if bad.size:
            where = f"[{bad[0]}]" if array.ndim else ""
            raise ValueError(f"prior {name}{where} = {array.flat[bad[0]]} must be finite and positive")
        checked.append(float(array) if array.ndim == 0 else array)
    return checked[0], checked[1]
