"""Sample every problem N times and count what is correct: streaming, resumable, on the shard's own callables.

    requests (problem, first sample, seed) ─► generate ─► score ─► one JSON line per sample ─► counts c(q)

Knows neither Ray nor vLLM: `generate` and `score` are those of the shard (`actors.calls` makes them from
Serve handles). A request draws up to `samples_per_request` completions. Its seed is the problem's seed plus
the number of its first sample; vLLM adds the place within the request, so that sample j of a problem is the
same however the samples are cut into requests, and what an interruption lost is drawn again as it was.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.types import Completion, Prompt, SamplingRequest, Scored
from evaluation.samples import Sample, append, open_samples

Generate = Callable[[SamplingRequest], Awaitable[list[Completion]]]
Score = Callable[[Prompt, Sequence[Completion]], Awaitable[list[Scored]]]


@dataclass(frozen=True, slots=True)
class Progress:
    """Samples `done` of `total`; `tokens` and `seconds` of this call alone; `left_s` None before the first
    result. `versions`: the oldest and the newest weights so far."""

    done: int
    total: int
    tokens: int
    seconds: float
    left_s: float | None
    versions: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """What was counted over N = `samples` of each problem; all arrays (P,), in the order of the problems.
    `versions` are the oldest and the newest weights that any token of them came from."""

    samples: int
    problems: NDArray[np.int64]
    correct: NDArray[np.int64]
    formatted: NDArray[np.int64]
    tokens: NDArray[np.int64]
    cut: NDArray[np.int64]
    versions: tuple[int, int] = (0, 0)


async def evaluate(
    problems: Sequence[Prompt],
    generate: Generate,
    score: Score,
    samples: int,
    out: Path,
    *,
    about: Mapping[str, object],
    seed: int = 0,
    samples_per_request: int = 16,
    in_flight: int = 64,
    priority: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> Counts:
    """Draw what `out` does not hold yet and count all of it.

    `about` names what is sampled (model, temperature, benchmark…): plain JSON values, equal on every call for
    one file. `samples` may grow from call to call; counts are over the first `samples` of each problem.
    Raises SampleFileError when `out` is of something else, ValueError for impossible sizes, and whatever
    `generate` or `score` raise: the file keeps what was drawn until then.
    """
    _check(problems, samples, samples_per_request, in_flight)
    identity = {**about, "seed": seed}
    tally = _Tally(problems, samples)
    for sample in open_samples(out, identity, problems):
        tally.add(sample)
    run = _Run(generate, score, out, seed, tally, progress, priority)
    todo = iter(_missing(problems, samples, samples_per_request, tally))
    try:
        async with asyncio.TaskGroup() as group:  # `in_flight` requests at a time, from one shared list
            for _ in range(in_flight):
                group.create_task(run.work(todo))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return tally.counts()


Request = tuple[Prompt, int, int]
"""Problem, first sample, number of samples."""


class _Tally:
    """Which samples are known and what they add up to. Texts stay on disk: there may be 100,000 long ones."""

    def __init__(self, problems: Sequence[Prompt], samples: int) -> None:
        self._row = {p.index: i for i, p in enumerate(problems)}
        self._known = np.zeros((len(problems), samples), dtype=bool)
        self._sums = np.zeros((4, len(problems)), dtype=np.int64)
        self._versions: tuple[int, int] | None = None

    def add(self, s: Sample) -> None:
        row = self._row[s.problem]
        if s.sample >= self._known.shape[1] or self._known[row, s.sample]:
            return
        self._known[row, s.sample] = True
        formatted = s.rewards.get("format", 0.0) >= 1.0
        self._sums[:, row] += [s.success, formatted, s.length, s.finish_reason == "length"]
        (old, new), seen = s.versions, self._versions or s.versions
        self._versions = min(old, seen[0]), max(new, seen[1])

    def has(self, problem: int, sample: int) -> bool:
        return bool(self._known[self._row[problem], sample])

    @property
    def done(self) -> int:
        return int(self._known.sum())

    @property
    def total(self) -> int:
        return self._known.size

    @property
    def versions(self) -> tuple[int, int]:
        return self._versions or (0, 0)

    def counts(self) -> Counts:
        problems = np.array(list(self._row), dtype=np.int64)
        correct, formatted, tokens, cut = self._sums
        return Counts(self._known.shape[1], problems, correct, formatted, tokens, cut, self.versions)


class _Run:
    """One call: draws, scores, writes and counts."""

    def __init__(
        self,
        generate: Generate,
        score: Score,
        out: Path,
        seed: int,
        tally: _Tally,
        progress: Callable[[Progress], None] | None,
        priority: int,
    ) -> None:
        self._priority = priority
        self._generate, self._score, self._out, self._seed = generate, score, out, seed
        self._tally, self._progress = tally, progress
        self._held, self._tokens, self._start = tally.done, 0, time.monotonic()

    async def work(self, todo: Iterator[Request]) -> None:
        for prompt, first, n in todo:
            seed = request_seed(self._seed, prompt.index, first)
            completions = await self._generate(SamplingRequest(prompt, n, seed, self._priority))
            scored = await self._score(prompt, completions)
            self._keep(prompt, first, seed, list(zip(completions, scored, strict=True)))

    def _keep(
        self, prompt: Prompt, first: int, seed: int, scored: Sequence[tuple[Completion, Scored]]
    ) -> None:
        drawn = [_sample(prompt, first + j, seed, c, r) for j, (c, r) in enumerate(scored)]
        new = [s for s in drawn if not self._tally.has(s.problem, s.sample)]
        append(self._out, map(asdict, new))
        for s in new:
            self._tally.add(s)
        self._tokens += sum(s.length for s in drawn)
        if self._progress is not None:
            self._progress(self._reading())

    def _reading(self) -> Progress:
        done, total = self._tally.done, self._tally.total
        seconds, fresh = time.monotonic() - self._start, done - self._held
        left = (total - done) * seconds / fresh if fresh else None
        return Progress(done, total, self._tokens, seconds, left, self._tally.versions)


def request_seed(seed: int, problem: int, first: int) -> int:
    """Seed of the request that begins at sample `first` of a problem. No two samples of a problem share
    theirs."""
    digest = hashlib.blake2b(f"{seed}:{problem}".encode(), digest_size=4).digest()
    return (int.from_bytes(digest, "big") >> 2) + first


def _check(problems: Sequence[Prompt], samples: int, samples_per_request: int, in_flight: int) -> None:
    if not problems:
        raise ValueError("nothing to evaluate: the benchmark has no usable problem")
    if len({p.index for p in problems}) != len(problems):
        raise ValueError("two problems have the same index: samples of one would count for the other")
    for name, value in (
        ("samples", samples),
        ("samples_per_request", samples_per_request),
        ("in_flight", in_flight),
    ):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")


def _missing(problems: Sequence[Prompt], samples: int, size: int, tally: _Tally) -> list[Request]:
    """The requests that any sample is missing of. Problems take turns, so that an interrupted run has all."""
    return [
        (prompt, first, min(size, samples - first))
        for first in range(0, samples, size)
        for prompt in problems
        if not all(tally.has(prompt.index, j) for j in range(first, min(first + size, samples)))
    ]


def _sample(prompt: Prompt, number: int, seed: int, c: Completion, scored: Scored) -> Sample:
    versions = [span.version for span in c.spans]
    return Sample(
        problem=prompt.index,
        sample=number,
        seed=seed,
        text=c.text,
        length=len(c.tokens),
        finish_reason=c.finish_reason,
        versions=(min(versions), max(versions)) if versions else (0, 0),
        rewards=scored.rewards,
        success=scored.success,
    )
