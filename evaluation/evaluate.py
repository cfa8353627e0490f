"""Sample every problem N times and count correct samples: streaming, resumable, one JSON line per sample.

    missing samples ─► generate ─► score ─► one JSON line per sample ─► counts c(q)

Imports neither Ray nor vLLM: `actors/coordinator/calls.py` makes both callables from Serve handles. A
request's seed is its prompt's seed plus its first sample's number; vLLM adds the index within the request.
So sample j of a prompt does not depend on how samples are grouped into requests, and a resumed call repeats
lost samples exactly.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hora_rl.actors.concurrency import all_of
from hora_rl.actors.coordinator.sampling import Generate, Score
from hora_rl.common.types import Completion, Prompt, SamplingRequest, Scored
from hora_rl.evaluation.samples import Sample, append, open_samples


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """Counts over N = `samples` per problem; all arrays (P,), in problem order. `versions`: oldest and newest
    weights of any token."""

    samples: int
    problems: NDArray[np.int64]
    correct: NDArray[np.int64]
    formatted: NDArray[np.int64]
    tokens: NDArray[np.int64]
    cut: NDArray[np.int64]
    versions: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Progress:
    """Samples `done` of `total`; `tokens` and `seconds` of this call only; `left_s` is None before the first
    result."""

    done: int
    total: int
    tokens: int
    seconds: float
    left_s: float | None


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
    truncation: Mapping[str, float] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Counts:
    """Draw the samples missing in `out`, and count all samples.

    `truncation` is `Evaluation.truncation`. `about` identifies the samples (model, temperature, benchmark…)
    in plain JSON values, equal on every call for one file. `samples` may grow between calls; counts are over
    the first `samples` of each problem. Raises ConfigError if `out` has another identity, and any error
    of `generate` or `score`; samples drawn before are kept.
    """
    tally = _Tally(problems, samples)
    cut = truncation or {}
    for sample in open_samples(out, {**about, **cut, "seed": seed}, problems):
        tally.add(sample)
    left = iter(_missing(problems, samples, samples_per_request, tally))
    held, tokens, began = tally.done, 0, time.monotonic()

    async def work() -> None:
        nonlocal tokens
        for prompt, first, n in left:
            request = SamplingRequest(prompt, n, _seed(seed, prompt.index, first), truncation=cut)
            completions = await generate(request)
            scored = await score(prompt, completions)
            drawn = [
                _sample(request, first + index, c, r)
                for index, (c, r) in enumerate(zip(completions, scored, strict=True))
            ]
            new = [s for s in drawn if not tally.has(s.problem, s.sample)]
            append(out, map(asdict, new))
            for sample in new:
                tally.add(sample)
            tokens += sum(s.length for s in drawn)
            if progress is not None:
                seconds, fresh = time.monotonic() - began, tally.done - held
                left_s = (tally.total - tally.done) * seconds / fresh if fresh else None
                progress(Progress(tally.done, tally.total, tokens, seconds, left_s))

    await all_of(work() for _ in range(in_flight))
    return tally.counts()


class _Tally:
    """Known samples and their sums. Texts stay on disk: there may be 100,000 long ones."""

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

    def counts(self) -> Counts:
        problems = np.array(list(self._row), dtype=np.int64)
        correct, formatted, tokens, cut = self._sums
        versions = self._versions or (0, 0)
        return Counts(self._known.shape[1], problems, correct, formatted, tokens, cut, versions)


def _missing(
    problems: Sequence[Prompt], samples: int, size: int, tally: _Tally
) -> Iterator[tuple[Prompt, int, int]]:
    """(problem, first sample, number) of requests with a missing sample. Problems take turns, so an
    interrupted run covers all of them."""
    for first in range(0, samples, size):
        n = min(size, samples - first)
        for prompt in problems:
            if not all(tally.has(prompt.index, j) for j in range(first, first + n)):
                yield prompt, first, n


def _seed(seed: int, prompt: int, first: int) -> int:
    """Seed of the request from sample `first` of a prompt on. Each sample of a prompt gets another seed."""
    digest = hashlib.blake2b(f"{seed}:{prompt}".encode(), digest_size=4).digest()
    return (int.from_bytes(digest, "big") >> 2) + first


def _sample(request: SamplingRequest, number: int, c: Completion, scored: Scored) -> Sample:
    versions = [span.version for span in c.spans]
    return Sample(
        problem=request.prompt.index,
        sample=number,
        seed=request.seed,
        text=c.text,
        length=len(c.tokens),
        finish_reason=c.finish_reason,
        versions=(min(versions), max(versions)) if versions else (0, 0),
        rewards=scored.rewards,
        success=scored.success,
    )
