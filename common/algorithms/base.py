"""What one algorithm's file tells: its advantage, its token loss or both, and the defaults of its keys. No
file of this folder imports torch: a token loss calls methods of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    import torch

Values = NDArray[np.float64]
UserAdvantage = Callable[[Values, Values, NDArray[np.str_]], ArrayLike]
"""A of (rewards (n,), successes (n,), phases (n,) "A" or "B")."""
Gain = tuple["torch.Tensor", "torch.Tensor"]
"""Per-token objective (N,) and mask of clipped tokens (N,)."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenTerms:
    """What a token loss may use of N tokens: ρ = π_θ/π_prox, log π_θ and A, all (N,), and the bounds of
    `learner.objective`."""

    ratio: torch.Tensor
    logprobs: torch.Tensor
    advantage: torch.Tensor
    clip_low: float
    clip_high: float


TokenLoss = Callable[[TokenTerms], Gain]


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One algorithm, chosen by name in `learner.objective.advantage` or `.loss`.

    advantage: maps the rewards (n,) of a group, or with `counts` its successes, to A (n,), with the keys `k`
    and `baseline` as arguments if it has them. least_k: its smallest k; 0: it has no k. per_group: A is made
    for a mean over its group (1/G_i), so `normalisation: token` would change its target.

    token_loss: see `TokenTerms`. per_completion: ρ is the geometric mean over the completion. defaults: of
    the keys of `learner.objective` under this loss."""

    advantage: Callable[..., Values] | None = None
    user_advantage: UserAdvantage | None = None
    counts: bool = False
    least_k: int = 0
    has_baseline: bool = False
    per_group: bool = False
    token_loss: TokenLoss | None = None
    per_completion: bool = False
    defaults: Mapping[str, object] = field(default_factory=dict)


def centred(rewards: ArrayLike) -> Values:
    """R - mean; exactly zero if all rewards are equal or n = 1."""
    values = np.asarray(rewards, dtype=np.float64)
    if len(values) < 2 or np.ptp(values) == 0.0:
        return np.zeros(len(values))
    return values - values.mean()
