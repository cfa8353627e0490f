"""In which order prompts are met: pure in seed, epoch and batch, so a restart needs to know the batch number
alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock

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


@dataclass(frozen=True, slots=True)
class Mixture:
    """Usable rows of each data source of a run, and in which proportion a batch takes of them. The rows of
    all sources are numbered one source after the other."""

    rows: tuple[int, ...]
    weights: tuple[float, ...] = (1.0,)

    @property
    def total(self) -> int:
        return sum(self.rows)


def mixed_rows(
    batch: int, prompts_per_batch: int, mixture: Mixture, seed: int, shuffle: bool = True
) -> list[tuple[int, int]]:
    """The Γ prompts of a batch as (epoch of its source, row), no row twice; of one source `batch_rows`.

    Each place of the run goes to the source that lags most behind its weight, so any stretch of places holds
    the sources in proportion. Each source counts its own epochs: where fewer of its rows are left than a
    batch takes, these are left out, other ones each epoch. Pure in seed, weights, rows and batch. Raises
    ValueError where a batch takes more of a source than it has rows.
    """
    if len(mixture.rows) == 1:
        return batch_rows(batch, prompts_per_batch, mixture.rows[0], seed, shuffle)
    start = _positions(mixture, prompts_per_batch).at(batch)
    turns = _turns(mixture, start.used, batch * prompts_per_batch, prompts_per_batch)
    begun = _begun(mixture, start, turns)
    firsts = [sum(mixture.rows[:k]) for k in range(len(mixture.rows))]
    met = [
        iter(_order_of(k, n, seed, begun.epochs[k], shuffle)[begun.places[k] :])
        for k, n in _numbered(mixture)
    ]
    return [(begun.epochs[k], firsts[k] + int(next(met[k]))) for k in turns]


def counts_of(batch: int, prompts_per_batch: int, mixture: Mixture) -> list[int]:
    """How many rows of each source a batch takes. Raises as `mixed_rows` does."""
    start = _positions(mixture, prompts_per_batch).at(batch)
    turns = _turns(mixture, start.used, batch * prompts_per_batch, prompts_per_batch)
    return [turns.count(k) for k in range(len(mixture.rows))]


@dataclass(frozen=True, slots=True)
class _Position:
    """Before a batch: rows used of each source, its epoch, and its place in that."""

    used: tuple[int, ...]
    epochs: tuple[int, ...]
    places: tuple[int, ...]


class _Positions:
    """Positions batch after batch, remembered: a batch depends on how many rows those before it took."""

    def __init__(self, mixture: Mixture, prompts_per_batch: int) -> None:
        nought = (0,) * len(mixture.rows)
        self._mixture, self._per_batch = mixture, prompts_per_batch
        self._known = [_Position(nought, nought, nought)]
        self._here = Lock()

    def at(self, batch: int) -> _Position:
        with self._here:
            while len(self._known) <= batch:
                self._known.append(self._after(len(self._known) - 1))
        return self._known[batch]

    def _after(self, batch: int) -> _Position:
        start = self._known[batch]
        turns = _turns(self._mixture, start.used, batch * self._per_batch, self._per_batch)
        begun, taken = _begun(self._mixture, start, turns), [turns.count(k) for k in range(len(start.used))]
        return _Position(
            tuple(map(sum, zip(start.used, taken, strict=True))),
            begun.epochs,
            tuple(map(sum, zip(begun.places, taken, strict=True))),
        )


@lru_cache(maxsize=8)
def _positions(mixture: Mixture, prompts_per_batch: int) -> _Positions:
    return _Positions(mixture, prompts_per_batch)


def _turns(mixture: Mixture, used: Sequence[int], first: int, n: int) -> list[int]:
    """The sources (n,) of places `first` to `first` + n of the run, `used` of each before them."""
    whole, taken, turns = sum(mixture.weights), list(used), []
    for place in range(first, first + n):
        lag = [w / whole * (place + 1) - u for w, u in zip(mixture.weights, taken, strict=True)]
        k = lag.index(max(lag))
        taken[k] += 1
        turns.append(k)
    return turns


def _begun(mixture: Mixture, start: _Position, turns: Sequence[int]) -> _Position:
    """`start`, with a new epoch for each source of which fewer rows are left than the batch takes."""
    epochs, places = list(start.epochs), list(start.places)
    for k, n in _numbered(mixture):
        takes = turns.count(k)
        if takes > n:
            raise ValueError(
                f"a batch takes {takes} rows of data source {k + 1} of {len(mixture.rows)}, which has {n} "
                "usable ones, and would hold a prompt twice: lower its weight or rollout.prompts_per_batch, "
                "or use more rows"
            )
        if places[k] + takes > n:
            epochs[k], places[k] = epochs[k] + 1, 0
    return _Position(start.used, tuple(epochs), tuple(places))


def _numbered(mixture: Mixture) -> list[tuple[int, int]]:
    return list(enumerate(mixture.rows))


@lru_cache(maxsize=64)
def _order_of(source: int, n: int, seed: int, epoch: int, shuffle: bool) -> NDArray[np.int64]:
    """The permutation (n,) of one source's rows in one of its epochs."""
    if not source or not shuffle:
        return order(n, seed, epoch, shuffle)
    return np.random.Generator(np.random.PCG64([seed, epoch, source])).permutation(n).astype(np.int64)
