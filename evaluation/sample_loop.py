"""The sampling loop of evaluation and `hora plan CONFIG`.

    requests (prompt, first sample, number) ─► generate ─► score ─► take

Imports neither Ray nor vLLM: `actors/coordinator/calls.py` makes both callables from Serve handles. A
request's seed is its prompt's seed plus its first sample's number; vLLM adds the index within the request.
So sample j of a prompt does not depend on how samples are grouped into requests, and a resumed call repeats
lost samples exactly.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hora_rl.actors.concurrency import all_of
from hora_rl.actors.coordinator.sampling import Generate, Score
from hora_rl.common.types import Completion, Prompt, SamplingRequest, Scored


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """`n` samples of `prompt` from number `first` on, drawn from `seed` with `truncation` (top_p, …)."""

    prompt: Prompt
    first: int
    n: int
    seed: int
    truncation: Mapping[str, float] = field(default_factory=dict)


Take = Callable[[Request, Sequence[Completion], Sequence[Scored]], None]
"""Called with each answered request, its completions and their scores, both (n,)."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Samples `done` of `total`; `tokens` and `seconds` of this call only; `left_s` is None before the first
    result."""

    done: int
    total: int
    tokens: int
    seconds: float
    left_s: float | None


class Meter:
    """Count the samples of one call, on top of `held` earlier ones, and report progress."""

    def __init__(self, held: int, total: int, report: Callable[[Progress], None] | None) -> None:
        self._held, self._total, self._report = held, total, report
        self._tokens, self._fresh, self._start = 0, 0, time.monotonic()

    def add(self, samples: int, tokens: int) -> None:
        """Add `samples` new samples with `tokens` completion tokens in total."""
        self._fresh += samples
        self._tokens += tokens
        if self._report is None:
            return
        done, seconds = self._held + self._fresh, time.monotonic() - self._start
        left = (self._total - done) * seconds / self._fresh if self._fresh else None
        self._report(Progress(done, self._total, self._tokens, seconds, left))


async def draw(
    requests: Iterable[Request], generate: Generate, score: Score, take: Take, in_flight: int
) -> None:
    """Answer all `requests` in order, `in_flight` at a time.

    Raises the first error of `generate`, `score` or `take`, after cancelling the rest.
    """
    left = iter(requests)

    async def work() -> None:
        for request in left:
            wanted = SamplingRequest(request.prompt, request.n, request.seed, truncation=request.truncation)
            completions = await generate(wanted)
            take(request, completions, await score(request.prompt, completions))

    await all_of(work() for _ in range(in_flight))


def request_seed(seed: int, prompt: int, first: int) -> int:
    """Seed of the request from sample `first` of a prompt on. Each sample of a prompt gets another seed."""
    digest = hashlib.blake2b(f"{seed}:{prompt}".encode(), digest_size=4).digest()
    return (int.from_bytes(digest, "big") >> 2) + first
