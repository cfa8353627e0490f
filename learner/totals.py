"""Sums and values of a step over all ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

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


def sums_over_ranks(sums: dict[str, float], world: int) -> dict[str, float]:
    """The sums over all ranks; the maximum for names that end with `max`. A collective."""
    every = gathered(sums, world)
    return {n: (max if n.endswith("max") else sum)(own[n] for own in every) for n in sums}


def gathered(own: T, world: int) -> list[T]:
    """Every rank's value, in rank order. A collective where `world` > 1."""
    every = [own] * world
    if world > 1:
        torch.distributed.all_gather_object(every, own)
    return every
