"""The order of prompts: a pure function of seed, epoch and batch, so a restart needs only the batch."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from threading import Lock

import numpy as np
from numpy.typing import NDArray

_LOCK = Lock()


@dataclass(frozen=True, slots=True)
class Mixture:
    """Usable rows of each data source, and weights in a batch. Rows are numbered source after source."""

    rows: tuple[int, ...]
    weights: tuple[float, ...] = (1.0,)

    @property
    def total(self) -> int:
        return sum(self.rows)

    @property
    def firsts(self) -> list[int]:
        """The first row of each source."""
        return [sum(self.rows[:k]) for k in range(len(self.rows))]


def mixed_rows(
    batch: int, prompts_per_batch: int, mixture: Mixture, seed: int, shuffle: bool = True
) -> list[tuple[int, int]]:
    """The Γ prompts of a batch as (epoch of its source, row), no row twice.

    Each place of the run goes to the source furthest behind its weight, so every stretch has the sources in
    proportion. Each source has separate epochs, and each epoch a new order. Rows that are too few for a batch
    are left out, with `shuffle` different ones each epoch. Determined by seed, weights, rows and batch.
    Raises ValueError if the batch takes more rows than a source has."""
    turns = sources_of(batch, prompts_per_batch, mixture)
    _, epochs, places = _batch(batch, prompts_per_batch, mixture)
    firsts = mixture.firsts
    met = [iter(order(n, seed, epochs[k], shuffle, k)[places[k] :]) for k, n in enumerate(mixture.rows)]
    return [(epochs[k], firsts[k] + int(next(met[k]))) for k in turns]


def sources_of(batch: int, prompts_per_batch: int, mixture: Mixture) -> list[int]:
    """The source of each of the Γ places of a batch. Raises ValueError as `mixed_rows`."""
    turns, _, _ = _batch(batch, prompts_per_batch, mixture)
    for k, n in enumerate(mixture.rows):
        if (takes := turns.count(k)) > n:
            raise ValueError(
                f"a batch takes {takes} rows of data source {k + 1} of {len(mixture.rows)}, which has "
                f"{n} usable ones: lower its weight or rollout.prompts_per_batch, or use more rows"
            )
    return turns


def counts_of(batch: int, prompts_per_batch: int, mixture: Mixture) -> list[int]:
    """Number of rows a batch takes from each source."""
    turns, _, _ = _batch(batch, prompts_per_batch, mixture)
    return [turns.count(k) for k in range(len(mixture.rows))]


Batch = tuple[list[int], list[int], list[int]]
"""The source of each place of a batch; and by source its epoch, and the first place in that epoch."""


def _batch(number: int, prompts_per_batch: int, mixture: Mixture) -> Batch:
    known, more = _batches(mixture, prompts_per_batch)
    with _LOCK:
        while len(known) <= number:
            known.append(next(more))
    return known[number]


@lru_cache(maxsize=8)
def _batches(mixture: Mixture, prompts_per_batch: int) -> tuple[list[Batch], Iterator[Batch]]:
    """The batches so far, and the rest: each depends on the one before."""
    return [], _all_batches(mixture, prompts_per_batch)


def _all_batches(mixture: Mixture, prompts_per_batch: int) -> Iterator[Batch]:
    sources, total = range(len(mixture.rows)), sum(mixture.weights)
    used, epochs, places = ([0 for _ in sources] for _ in range(3))
    for first in count(1, prompts_per_batch):
        turns, before = list[int](), list(used)
        for position in range(first, first + prompts_per_batch):
            lag = [mixture.weights[k] / total * position - used[k] for k in sources]
            turns.append(lag.index(max(lag)))
            used[turns[-1]] += 1
        for k, n in enumerate(mixture.rows):
            if places[k] + used[k] - before[k] > n:  # too few are left: a new epoch
                epochs[k], places[k] = epochs[k] + 1, 0
        yield turns, list(epochs), list(places)
        places = [places[k] + used[k] - before[k] for k in sources]


@lru_cache(maxsize=64)
def order(n: int, seed: int, epoch: int, shuffle: bool = True, source: int = 0) -> NDArray[np.int64]:
    """The permutation (n,) of a source's rows 0..n-1 in one epoch."""
    if not shuffle:
        return np.arange(n, dtype=np.int64)
    key = [seed, epoch, source] if source else [seed, epoch]
    return np.random.Generator(np.random.PCG64(key)).permutation(n).astype(np.int64)
