"""In which order prompts are met: pure in seed, epoch and batch, so a restart needs to know the batch number
alone."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def batch_rows(
    batch: int, prompts_per_batch: int, n: int, seed: int, shuffle: bool = True
) -> list[tuple[int, int]]:
    """The Γ prompts of a batch as (epoch, row), no row twice.

    An epoch is floor(n / Γ) whole batches of a new permutation; its last n mod Γ rows are left out, other
    ones each epoch. Raises ValueError when Γ > n.
    """
    if prompts_per_batch > n:
        raise ValueError(
            f"rollout.prompts_per_batch ({prompts_per_batch}) must not exceed the {n} usable rows of the "
            "data set, or a batch would hold a prompt twice: lower it or use more rows"
        )
    epoch, place = divmod(batch, n // prompts_per_batch)
    first = place * prompts_per_batch
    rows = order(n, seed, epoch, shuffle)[first : first + prompts_per_batch]
    return [(epoch, int(row)) for row in rows]


@lru_cache(maxsize=4)
def order(n: int, seed: int, epoch: int, shuffle: bool = True) -> NDArray[np.int64]:
    """The permutation (n,) of rows 0..n-1 of one epoch."""
    if not shuffle:
        return np.arange(n, dtype=np.int64)
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(n).astype(np.int64)
