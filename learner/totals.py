"""Sums and values of a step over all ranks."""

from typing import TypeVar

import torch

T = TypeVar("T")


def sums_over_ranks(sums: dict[str, float]) -> dict[str, float]:
    """The sums over all ranks; the maximum for names that end with `max`. A collective."""
    every = gathered(sums)
    return {n: (max if n.endswith("max") else sum)(own[n] for own in every) for n in sums}


def gathered(own: T) -> list[T]:
    """Every rank's value, in rank order. A collective of the process group, if there is one."""
    every = [own] * (torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1)
    if len(every) > 1:
        torch.distributed.all_gather_object(every, own)
    return every
