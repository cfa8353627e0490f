"""Sums, values and quantiles of a step over all ranks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Totals:
    """Trained completion tokens and rollouts of a step; sum and sum of squares of its rollouts' rewards."""

    tokens: float
    rollouts: float
    rewards: float
    squares: float

    @property
    def deviation(self) -> float:
        """Standard deviation of the rewards, with n - 1; 0 for a single rollout."""
        if self.rollouts < 2:
            return 0.0
        mean = self.rewards / self.rollouts
        return math.sqrt(max(0.0, self.squares - self.rollouts * mean * mean) / (self.rollouts - 1))


def sums_over_ranks(sums: dict[str, float]) -> dict[str, float]:
    """The sums over all ranks; the maximum for names that end with `max`. A collective."""
    every = gathered(sums)
    return {n: (max if n.endswith("max") else sum)(own[n] for own in every) for n in sums}


def threshold(entropies: Sequence[torch.Tensor], share: float) -> float:
    """The (1 - share) quantile of the entropies of all ranks' tokens (`top_entropy_quantile`). A
    collective."""
    own = torch.cat(list(entropies)).float().cpu().numpy()
    every = np.concatenate(gathered(own))
    return float(np.quantile(every, 1.0 - share)) if len(every) else 0.0


def gathered(own: T) -> list[T]:
    """Every rank's value, in rank order. A collective of the process group, if there is one."""
    every = [own] * (torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1)
    if len(every) > 1:
        torch.distributed.all_gather_object(every, own)
    return every
