"""Sample every problem N times and count correct samples: streaming, resumable, one JSON line per sample.

missing samples ─► hora_rl.evaluation.sample_loop.draw ─► one JSON line per sample ─► counts c(q)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hora_rl.actors.coordinator.sampling import Generate, Score
from hora_rl.common.types import Completion, Prompt, Scored
from hora_rl.evaluation.sample_loop import Meter, Progress, Request, draw, request_seed
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
    the first `samples` of each problem. Raises SampleFileError if `out` has another identity, and any error
    of `generate` or `score`; samples drawn before are kept.
    """
    tally = _Tally(problems, samples)
    cut = truncation or {}
    for sample in open_samples(out, {**about, **cut, "seed": seed}, problems):
        tally.add(sample)
    meter = Meter(tally.done, tally.total, progress)

    def record(request: Request, completions: Sequence[Completion], scored: Sequence[Scored]) -> None:
        drawn = [
            _sample(request, index, c, r)
            for index, (c, r) in enumerate(zip(completions, scored, strict=True))
        ]
        new = [s for s in drawn if not tally.has(s.problem, s.sample)]
        append(out, map(asdict, new))
        for sample in new:
            tally.add(sample)
        meter.add(len(new), sum(s.length for s in drawn))

    missing = _missing(problems, samples, samples_per_request, seed, tally, cut)
    await draw(missing, generate, score, record, in_flight)
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
    problems: Sequence[Prompt], samples: int, size: int, seed: int, tally: _Tally, cut: Mapping[str, float]
) -> list[Request]:
    """Requests with a missing sample. Problems take turns, so an interrupted run covers all of them."""
    return [
        Request(prompt, first, min(size, samples - first), request_seed(seed, prompt.index, first), cut)
        for first in range(0, samples, size)
        for prompt in problems
        if not all(tally.has(prompt.index, j) for j in range(first, min(first + size, samples)))
    ]


def _sample(request: Request, index: int, c: Completion, scored: Scored) -> Sample:
    versions = [span.version for span in c.spans]
    return Sample(
        problem=request.prompt.index,
        sample=request.first + index,
        seed=request.seed,
        text=c.text,
        length=len(c.tokens),
        finish_reason=c.finish_reason,
        versions=(min(versions), max(versions)) if versions else (0, 0),
        rewards=scored.rewards,
        success=scored.success,
    )
