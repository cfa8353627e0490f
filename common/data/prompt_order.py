"""The order of prompts, a pure function of seed, epoch and batch; and, where prompts rest (`data.rest`), of
the counts.

    batch b = the next Γ prompts that are awake after the cycles up to b - 1 - max_staleness

A prompt that is `solved` (all pre-rollouts right) or `unsolved` (no hit in any rollout so far) rests for 1
epoch of its source, if it is so again at its return for 2, then for 4. Any other result ends the series. A
batch takes as many rows of each source as without rests. Where an epoch has fewer awake rows left, the first
later epoch with enough of them begins, so batches are always full. A restarted coordinator and the audit
compute the order again from the reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from hora_rl.common.config import DataConfig, RolloutConfig
from hora_rl.common.records import ShardReport

_LOCK = Lock()
SOLVED, UNSOLVED = "solved", "unsolved"
LONGEST = 40
"""Doublings, far more than a run has epochs."""


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
        return [sum(self.rows[:k]) for k in range(len(self.rows))]


def mixed_rows(
    batch: int, prompts_per_batch: int, mixture: Mixture, seed: int, shuffle: bool = True
) -> list[tuple[int, int]]:
    """The Γ prompts of a batch as (epoch of its source, row), no row twice. Raises ValueError if the batch
    takes more rows than a source has.

    Each place of the run goes to the source furthest behind its weight, so every stretch has the sources in
    proportion. Each source has separate epochs, and each epoch a new order. Rows that are too few for a batch
    are left out, with `shuffle` different ones each epoch."""
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


@dataclass(frozen=True, slots=True)
class Counts:
    """A cycle's successes in Phase A by row, and hits of both phases by row (None where not known)."""

    trials: int
    successes: dict[int, int]
    hits: dict[int, int | None]

    @classmethod
    def of(cls, reports: Sequence[ShardReport]) -> Counts:
        successes = {row: c for r in reports for row, c in zip(r["prompts"], r["successes"], strict=False)}
        hits = {row: h for r in reports for row, h in zip(r["prompts"], r.get("hits", ()), strict=False)}
        return cls(reports[0]["trials"], successes, {row: hits.get(row) for row in successes})


class Order:
    """The prompts of every batch of a run. `rest` names the kinds that rest; none: this is `mixed_rows`."""

    def __init__(
        self,
        mixture: Mixture,
        prompts_per_batch: int,
        seed: int,
        shuffle: bool = True,
        rest: Sequence[str] = (),
        max_staleness: int = 0,
    ) -> None:
        self._mixture, self._size, self._seed, self._shuffle = mixture, prompts_per_batch, seed, shuffle
        self._rest, self._staleness = frozenset(rest), max_staleness
        self._cycles: list[Counts] = []
        self._used = 0  # cycles that the newest batch depends on
        self._batches: list[list[tuple[int, int]]] = []
        self._places = [(0, 0) for _ in mixture.rows]  # of each source: its epoch, and the next place there
        self._until = np.zeros(mixture.total, dtype=np.int64)  # the epoch from which a row is awake
        self._series: dict[int, tuple[str, int]] = {}  # row: its kind, and how often in a row
        self._hit = set[int]()  # rows that had a hit

    @classmethod
    def of(cls, data: DataConfig, rollout: RolloutConfig, seed: int, mixture: Mixture) -> Order:
        size, bound = rollout.prompts_per_batch, rollout.max_staleness
        return cls(mixture, size, seed, data.shuffle, data.rest, bound)

    @property
    def waits(self) -> bool:
        return bool(self._rest)

    @property
    def resting(self) -> int:
        """Prompts that rest in the epochs of the newest batch."""
        parts = np.split(self._until, self._mixture.firsts[1:])
        return sum(int((u > epoch).sum()) for u, (epoch, _) in zip(parts, self._places, strict=True))

    def observe(self, cycle: Counts) -> None:
        """Add the counts of the next cycle; cycle c has those of batch c."""
        self._cycles.append(cycle)

    def rows(self, batch: int) -> list[tuple[int, int]]:
        """(epoch of its source, row) of the Γ prompts of a batch, in order, no row twice. Raises ValueError
        if a source is too small, and IndexError before the cycles that the batch depends on were observed."""
        if not self._rest:
            return mixed_rows(batch, self._size, self._mixture, self._seed, self._shuffle)
        while len(self._batches) <= batch:
            for cycle in range(self._used, len(self._batches) - self._staleness):
                self._rest_after(cycle, self._cycles[cycle])
                self._used = cycle + 1
            self._batches.append(self._next())
        return self._batches[batch]

    def _rest_after(self, cycle: int, counts: Counts) -> None:
        for epoch, row in self._batches[cycle]:
            if row not in counts.successes:
                continue  # a damaged report, which the audit names
            c, hits = counts.successes[row], counts.hits[row]
            if c or hits:
                self._hit.add(row)
            unsolved = hits == 0 and row not in self._hit
            kind = SOLVED if c == counts.trials else UNSOLVED if unsolved else ""
            if kind not in self._rest:
                self._series.pop(row, None)
                continue
            before, times = self._series.get(row, (kind, 0))
            times = times if before == kind else 0
            self._series[row] = kind, times + 1
            self._until[row] = epoch + 1 + 2 ** min(times, LONGEST)

    def _next(self) -> list[tuple[int, int]]:
        turns = sources_of(len(self._batches), self._size, self._mixture)
        taken = {k: iter(self._take(k, turns.count(k))) for k in set(turns)}
        return [next(taken[k]) for k in turns]

    def _take(self, source: int, n: int) -> list[tuple[int, int]]:
        """The next `n` awake rows of a source, with their epoch."""
        total, first = self._mixture.rows[source], self._mixture.firsts[source]
        until = self._until[first : first + total]
        epoch, position = self._places[source]
        awake = self._awake(source, epoch, position, until)
        if len(awake) < n:  # the first later epoch with n awake rows begins
            epoch = max(epoch + 1, int(np.partition(until, n - 1)[n - 1]))
            awake = self._awake(source, epoch, 0, until)
        self._places[source] = epoch, int(awake[n - 1]) + 1
        rows = order(total, self._seed, epoch, self._shuffle, source)[awake[:n]]
        return [(epoch, first + int(row)) for row in rows]

    def _awake(self, source: int, epoch: int, position: int, until: NDArray[np.int64]) -> NDArray[np.int64]:
        """Places from `position` on whose row is awake in `epoch`."""
        rows = order(len(until), self._seed, epoch, self._shuffle, source)[position:]
        return position + np.flatnonzero(until[rows] <= epoch)
