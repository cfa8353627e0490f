"""In which order prompts are met: pure in seed, epoch and batch, so a restart needs to know the batch number alone."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def order(n: int, seed: int, epoch: int, shuffle: bool = True) -> NDArray[np.int64]:
    """The permutation (n,) of rows 0..n-1 of one epoch, before `batch_rows` keeps batches free of repeats."""
    if not shuffle:
        return np.arange(n, dtype=np.int64)
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(n).astype(np.int64)


def position(batch: int, prompts_per_batch: int, n: int) -> list[tuple[int, int]]:
    """The Γ slots of batch `batch` as (epoch, place within the epoch's order): batches follow each other without a
    gap, so one may end an epoch and begin the next. Raises ValueError when Γ > n.
    """
    if prompts_per_batch > n:
        raise ValueError(
            f"rollout.prompts_per_batch ({prompts_per_batch}) must not exceed the {n} usable rows of the data set, "
            "or a batch would hold a prompt twice: lower it or use more rows"
        )
    first = batch * prompts_per_batch
    return [divmod(slot, n) for slot in range(first, first + prompts_per_batch)]


def batch_rows(
    batch: int, prompts_per_batch: int, n: int, seed: int, shuffle: bool = True
) -> list[tuple[int, int]]:
    """The Γ prompts of a batch as (epoch, row), no row twice. Every epoch holds every row once.

    Raises ValueError when Γ > n.
    """
    slots = position(batch, prompts_per_batch, n)
    orders = {epoch: _settled(n, seed, epoch, prompts_per_batch, shuffle) for epoch, _ in slots}
    return [(epoch, orders[epoch][place]) for epoch, place in slots]


@lru_cache(maxsize=4)
def _settled(n: int, seed: int, epoch: int, prompts_per_batch: int, shuffle: bool) -> tuple[int, ...]:
    """`order`, with the first places of an epoch freed of the rows that end the previous epoch in the same batch.

    A row found there moves back to where the nearest later row came from that is not in that batch. The end of
    an epoch depends on its own beginning when it is short, so epochs are settled one after the other from the first.
    """
    tail: set[int] = set()
    rows: list[int] = []
    for e in range(epoch + 1):
        rows = order(n, seed, e, shuffle).tolist()
        head = (prompts_per_batch - len(tail)) if tail else 0
        _free_head(rows, head, tail)
        left = ((e + 1) * n) % prompts_per_batch
        tail = set(rows[n - left :])
    return tuple(rows)


def _free_head(rows: list[int], head: int, taken: set[int]) -> None:
    """Swap every row of rows[:head] that is in `taken` with the next later one that is not. In place."""
    later = head
    for place in range(head):
        if rows[place] not in taken:
            continue
        while rows[later] in taken:
            later += 1
        rows[place], rows[later] = rows[later], rows[place]
        later += 1
