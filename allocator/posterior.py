"""The Beta posterior of each prompt's success rate after Phase A (paper, section 3.2), and checks of
arguments, whose errors are one line with the argument, the first offending index and the value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float = NDArray[np.float64]
Int = NDArray[np.int64]
BetaPrior = tuple[float, float] | tuple[Float, Float]
"""(α0, β0): one prior for all prompts, or arrays (n,)."""


@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """Beta(alpha, beta) of each prompt and the counts behind it. Arrays (n,), or shapes that broadcast."""

    alpha: Float
    beta: Float
    successes: Int
    trials: Int

    @property
    def mean(self) -> Float:
        """Posterior mean α/(α+β) of the success rate."""
        return self.alpha / (self.alpha + self.beta)

    def __len__(self) -> int:
        return len(self.alpha)

    def __getitem__(self, index: Any) -> Posterior:
        """Some of the prompts; `[:, None]` makes prompts the rows of a table over levels."""
        return Posterior(self.alpha[index], self.beta[index], self.successes[index], self.trials[index])


def posterior(successes: Int, trials: Int, alpha: Float, beta: Float) -> Posterior:
    """Beta(α0 + c, β0 + G0 - c) (paper, eq. posterior). All arguments (n,)."""
    return Posterior(alpha + successes, beta + (trials - successes), successes, trials)


def prior_from_rate(rate: Float, strength: Float | float) -> tuple[Float, Float]:
    """Beta prior (s·p̂, s·(1-p̂)) of a predicted success rate p̂ (n,) with strength s. With the counts this
    is the paper's learned posterior, α = s·p̂ + c and β = s(1-p̂) + G0 - c."""
    return np.asarray(strength * rate), np.asarray(strength * (1 - rate))


def check_whole(name: str, value: object, least: int) -> int:
    """`value` as an int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be a whole number from {least}, not {value!r}")
    return int(value)


def check_counts(successes: ArrayLike) -> Int:
    """`successes` as integers (n,), n >= 1."""
    c = np.asarray(successes)
    if c.ndim != 1 or (c.size and c.dtype.kind not in "iu"):
        raise ValueError(f"successes must be integers of shape (n,), not {c.dtype} of shape {c.shape}")
    if c.size == 0:
        raise ValueError("successes is empty: there is no prompt to give rollouts to")
    return c.astype(np.int64, copy=False)


def check_trials(trials: ArrayLike, c: Int) -> Int:
    """`trials` as an integer or integers (n,), none below the successes `c` (n,)."""
    g0 = np.asarray(trials)
    if g0.dtype.kind not in "iu" or g0.ndim > 1 or (g0.ndim == 1 and g0.shape != c.shape):
        shape = f"{g0.dtype} of shape {g0.shape}"
        raise ValueError(f"trials must be an int or integers of shape {c.shape}, not {shape}")
    g0 = g0.astype(np.int64, copy=False)
    if int(g0.min()) < 0:
        raise ValueError(f"trials[{int(np.argmin(g0))}] = {int(g0.min())} must not be negative")
    if int(c.min()) < 0 or bool((c > g0).any()):
        i = int(np.flatnonzero((c < 0) | (c > g0))[0])
        raise ValueError(f"successes[{i}] = {c[i]} must be in 0..trials = {np.broadcast_to(g0, c.shape)[i]}")
    return g0


def check_budget(budget: int, c: Int, g0: Int, cap: int | None) -> None:
    """Check that `budget` is a whole number and that the cap leaves room for it."""
    check_whole("budget", budget, 0)
    if cap is None:
        return
    room = np.broadcast_to(cap - g0, c.shape)
    if int(room.min()) < 0:
        i = int(np.argmin(room))
        raise ValueError(f"max_group_size ({cap}) is below trials[{i}] = {np.broadcast_to(g0, c.shape)[i]}")
    if int(room.sum()) < budget:
        raise ValueError(
            f"budget ({budget}) exceeds what max_group_size ({cap}) leaves room for: {int(room.sum())}"
        )


def check_prior(prior: tuple[ArrayLike, ArrayLike], n: int) -> BetaPrior:
    """Two floats, or two arrays (n,) if one of them is an array; all finite and positive."""
    if len(prior) != 2:
        raise ValueError(f"prior must be a pair (alpha, beta), not {len(prior)} values")
    alpha, beta = (_positive(f"prior {name}", v, n) for name, v in zip(("alpha", "beta"), prior, strict=True))
    if alpha.ndim == beta.ndim == 0:
        return float(alpha), float(beta)
    return np.broadcast_to(alpha, (n,)), np.broadcast_to(beta, (n,))


def _positive(name: str, value: ArrayLike, n: int) -> Float:
    array = np.asarray(value, dtype=np.float64)
    if array.shape not in ((), (n,)):
        raise ValueError(f"{name} must be a number or of shape ({n},), not {array.shape}")
    bad = np.flatnonzero(~(np.isfinite(array) & (array > 0)))
    if bad.size:
        where = f"[{bad[0]}]" if array.ndim else ""
        raise ValueError(f"{name}{where} = {array.flat[bad[0]]} must be finite and positive")
    return array
