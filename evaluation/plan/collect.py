"""Count successes of training prompts for a plan, one line per prompt in a file that a later call resumes.

    requests (prompt, first sample, seed) ─► generate ─► score
        ─► {"id", "successes", "trials", "tokens", "about"}

A prompt is written when all its samples are counted, so an interruption costs only the prompts in work.
Each line says what it is of: counts of two models, temperatures or sizes never meet in a file.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.types import Prompt, SamplingRequest
from evaluation.evaluate import Generate, Progress, Score, request_seed
from evaluation.plan.counts import CountsError
from evaluation.samples import append, cut_torn_line, fingerprint


async def collect(
    prompts: Sequence[Prompt],
    generate: Generate,
    score: Score,
    samples: int,
    out: Path,
    *,
    about: Mapping[str, Any],
    seed: int = 0,
    samples_per_request: int = 16,
    in_flight: int = 64,
    progress: Callable[[Progress], None] | None = None,
) -> None:
    """Draw `samples` completions of each prompt that `out` does not hold yet and append its counts.

    `about` names what is sampled, as for `evaluate`. At most about `in_flight` requests wait at a time.
    Raises CountsError when `out` is of something else, and whatever `generate` or `score` raise:
    finished prompts are kept.
    """
    identity = json.loads(json.dumps({**about, "samples": samples, "seed": seed}))
    held = _held(out, {p.index: {**identity, "prompt": fingerprint([p])} for p in prompts}, identity)
    todo = [p for p in prompts if p.index not in held]
    run = _Run(generate, score, out, identity, samples_per_request, _Meter(samples, len(prompts), progress))
    run.meter.done = (len(prompts) - len(todo)) * samples
    requests = -(-samples // samples_per_request)
    left = iter(todo)
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(len(todo), -(-in_flight // requests))):
                group.create_task(run.work(left))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors


class _Meter:
    """How far a call is; `progress` hears of every answer."""

    def __init__(self, samples: int, prompts: int, progress: Callable[[Progress], None] | None) -> None:
        self.samples, self.total, self.done = samples, samples * prompts, 0
        self._progress, self._tokens, self._fresh, self._start = progress, 0, 0, time.monotonic()

    def add(self, samples: int, tokens: int) -> None:
        self.done += samples
        self._fresh += samples
        self._tokens += tokens
        if self._progress is not None:
            seconds = time.monotonic() - self._start
            left = (self.total - self.done) * seconds / self._fresh
            self._progress(Progress(self.done, self.total, self._tokens, seconds, left))


class _Run:
    def __init__(
        self,
        generate: Generate,
        score: Score,
        out: Path,
        identity: Mapping[str, Any],
        size: int,
        meter: _Meter,
    ) -> None:
        self._generate, self._score, self._out = generate, score, out
        self._identity, self._size, self.meter = identity, size, meter

    async def work(self, todo: Iterator[Prompt]) -> None:
        for prompt in todo:
            n = self.meter.samples
            asked = [(first, min(self._size, n - first)) for first in range(0, n, self._size)]
            found = await asyncio.gather(*(self._count(prompt, *request) for request in asked))
            successes, tokens = (sum(column) for column in zip(*found, strict=True))
            line = {"id": prompt.index, "successes": successes, "trials": n, "tokens": tokens}
            append(self._out, [{**line, "about": {**self._identity, "prompt": fingerprint([prompt])}}])

    async def _count(self, prompt: Prompt, first: int, n: int) -> tuple[int, int]:
        """Successes and tokens of `n` samples from number `first` on."""
        seed = request_seed(int(self._identity["seed"]), prompt.index, first)
        completions = await self._generate(SamplingRequest(prompt, n, seed))
        scored = await self._score(prompt, completions)
        tokens = sum(len(c.tokens) for c in completions)
        self.meter.add(len(completions), tokens)
        return sum(s.success for s in scored), tokens


def _held(out: Path, expected: Mapping[int, Mapping[str, Any]], identity: Mapping[str, Any]) -> set[int]:
    """Prompts that `out` has counts of, after making it fit to append to."""
    out.parent.mkdir(parents=True, exist_ok=True)
    cut_torn_line(out)
    held = set[int]()
    for number, line in enumerate(out.read_text(encoding="utf-8").splitlines() if out.exists() else (), 1):
        try:
            record = json.loads(line)
            index, found = int(record["id"]), dict(record["about"])
        except (ValueError, KeyError, TypeError):
            raise CountsError(f"{out}:{number}: not a line of `hora sample`; choose another --out") from None
        _compare(f"{out}:{number}", found, expected.get(index, {**identity, "prompt": found.get("prompt")}))
        held.add(index)
    return held


def _compare(place: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    for key in sorted(found.keys() | expected.keys()):
        if found.get(key) != expected.get(key):
            raise CountsError(
                f"{place}: was counted with {key} = {found.get(key)!r}, now it is {expected.get(key)!r}: "
                "choose another --out, or delete the file to start again"
            )
