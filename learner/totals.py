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


def sums_over_ranks(sums: dict[str, float], device: torch.device) -> dict[str, float]:
    """The sums over all ranks; the maximum for names that end with `max`. A collective."""
    names = sorted(sums)
    tensor = torch.tensor([sums[n] for n in names], dtype=torch.float64, device=device)
    top = tensor.clone()
    torch.distributed.all_reduce(tensor)
    torch.distributed.all_reduce(top, op=torch.distributed.ReduceOp.MAX)
    return {n: float(m if n.endswith("max") else s) for n, s, m in zip(names, tensor, top, strict=True)}


def gathered(own: T, world: int) -> list[T]:
    """Every rank's value, in rank order. A collective where `world` > 1."""
    every = [own] * world
    if world > 1:
        torch.distributed.all_gather_object(every, own)
    return every
