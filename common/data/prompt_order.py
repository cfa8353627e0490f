"""The order of prompts: a pure function of seed, epoch and batch, so a restart needs only the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
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


def mixed_rows(
    batch: int, prompts_per_batch: int, mixture: Mixture, seed: int, shuffle: bool = True
) -> list[tuple[int, int]]:
    """The Γ prompts of a batch as (epoch of its source, row), no row twice.

    Each place of the run goes to the source furthest behind its weight, so every stretch has the sources in
    proportion. Each source has separate epochs, and each epoch a new order. Rows that are too few for a batch
    are left out, different ones each epoch. Determined by seed, weights, rows and batch. Raises ValueError if
    a batch takes more rows than a source has."""
    start = _position(batch, prompts_per_batch, mixture)
    turns = _turns(mixture, start.used, prompts_per_batch)
    begun = _begun(mixture, start, turns)
    firsts = [sum(mixture.rows[:k]) for k in range(len(mixture.rows))]
    met = [
        iter(order(n, seed, begun.epochs[k], shuffle, k)[begun.places[k] :])
        for k, n in enumerate(mixture.rows)
    ]
    return [(begun.epochs[k], firsts[k] + int(next(met[k]))) for k in turns]


def counts_of(batch: int, prompts_per_batch: int, mixture: Mixture) -> list[int]:
    """Number of rows a batch takes from each source. Raises as `mixed_rows`."""
    start = _position(batch, prompts_per_batch, mixture)
    turns = _turns(mixture, start.used, prompts_per_batch)
    return [turns.count(k) for k in range(len(mixture.rows))]


@dataclass(frozen=True, slots=True)
class _Position:
    """State before a batch: rows used of each source, its epoch, and the place in that epoch."""

    used: tuple[int, ...]
    epochs: tuple[int, ...]
    places: tuple[int, ...]


def _position(batch: int, prompts_per_batch: int, mixture: Mixture) -> _Position:
    known = _positions(mixture, prompts_per_batch)
    with _LOCK:
        while len(known) <= batch:
            known.append(_after(known[-1], prompts_per_batch, mixture))
    return known[batch]


@lru_cache(maxsize=8)
def _positions(mixture: Mixture, prompts_per_batch: int) -> list[_Position]:
    """Positions of batches 0, 1, …; `_position` appends, since each depends on the one before."""
    nought = (0,) * len(mixture.rows)
    return [_Position(nought, nought, nought)]


def _after(start: _Position, prompts_per_batch: int, mixture: Mixture) -> _Position:
    turns = _turns(mixture, start.used, prompts_per_batch)
    begun = _begun(mixture, start, turns)
    used, places = list(start.used), list(begun.places)
    for k in turns:
        used[k] += 1
        places[k] += 1
    return _Position(tuple(used), begun.epochs, tuple(places))


def _turns(mixture: Mixture, used: Sequence[int], n: int) -> list[int]:
    """The sources (n,) of the next n places; `used` counts each source in earlier places."""
    total, taken, turns = sum(mixture.weights), list(used), []
    for place in range(sum(used) + 1, sum(used) + n + 1):
        lag = [w / total * place - u for w, u in zip(mixture.weights, taken, strict=True)]
        k = lag.index(max(lag))
        taken[k] += 1
        turns.append(k)
    return turns


def _begun(mixture: Mixture, start: _Position, turns: Sequence[int]) -> _Position:
    """`start`, with a new epoch for each source that has fewer rows left than the batch takes."""
    epochs, places = list(start.epochs), list(start.places)
    for k, n in enumerate(mixture.rows):
        takes = turns.count(k)
        if takes > n:
            raise ValueError(
                f"a batch takes {takes} rows of data source {k + 1} of {len(mixture.rows)}, which has "
                f"{n} usable ones: lower its weight or rollout.prompts_per_batch, or use more rows"
            )
        if places[k] + takes > n:
            epochs[k], places[k] = epochs[k] + 1, 0
    return _Position(start.used, tuple(epochs), tuple(places))


@lru_cache(maxsize=64)
def order(n: int, seed: int, epoch: int, shuffle: bool = True, source: int = 0) -> NDArray[np.int64]:
    """The permutation (n,) of a source's rows 0..n-1 in one epoch."""
    if not shuffle:
        return np.arange(n, dtype=np.int64)
    key = [seed, epoch, source] if source else [seed, epoch]
    return np.random.Generator(np.random.PCG64(key)).permutation(n).astype(np.int64)
