"""The control plane with timers in place of engines and optimizer; queue, ledger, feed and Redis are real.
`seconds_of` says what a real fleet would take; what the control plane takes is left to see."""

import asyncio
import math
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hora_rl.actors.coordinator.allocation import Cycles
from hora_rl.actors.coordinator.sampling import Generate, Score
from hora_rl.actors.coordinator.scheduler import Coordination, Services
from hora_rl.actors.coordinator.shard import Rank, unranked
from hora_rl.actors.coordinator.store import Leases, mixture_of
from hora_rl.allocator.priors.base import FixedPrior
from hora_rl.common.config import Config
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.queue import Producer
from hora_rl.common.live.redis import connect, connect_async
from hora_rl.common.live.telemetry import Telemetry
from hora_rl.common.types import Completion, Prompt, SamplingRequest, Scored, VersionSpan
from hora_rl.common.weights.announcement import advance
from hora_rl.learner.feed.admission import Vocabulary
from hora_rl.learner.feed.reader import Planner, Reader

TOKENIZER = "simulated"
VOCABULARY = 1024
FRESH_S = 0.01
RATES = (0.0, 0.02, 0.1, 0.4, 0.8, 0.97, 1.0)
LEASE_S = 0.3


def prompts(n: int, tokens: int = 8) -> list[Prompt]:
    """`n` prompts of `tokens` tokens each."""
    return [Prompt(i, f"problem {i}", "1", np.full(tokens, i % VOCABULARY, dtype=np.int32)) for i in range(n)]


@dataclass(slots=True)
class Fleet:
    """Generators as timers. `seconds_of(request, lengths)` is how long a request takes; `lengths_of(n)` draws
    the lengths of its completions. Completions are slices of one pool, so that making them costs next to
    nothing."""

    seconds_of: Callable[[SamplingRequest, np.ndarray], float] = lambda request, lengths: 0.0
    lengths_of: Callable[[int], np.ndarray] = lambda n: np.full(n, 2)
    pool: np.ndarray = field(
        default_factory=lambda: np.random.default_rng(0).integers(0, VOCABULARY, 4096, np.int32)
    )
    logprobs: np.ndarray = field(default_factory=lambda: np.full(4096, -0.5, dtype=np.float32))
    fault: Callable[[SamplingRequest], None] = lambda request: None
    requests: int = 0

    async def __call__(self, request: SamplingRequest, version: int) -> list[Completion]:
        self.requests += 1
        lengths = self.lengths_of(request.n)
        await asyncio.sleep(self.seconds_of(request, lengths))
        self.fault(request)
        names = (f"{request.seed}:{i}" for i in range(request.n))
        return [
            Completion(name, self.pool[:n], self.logprobs[:n], "stop", (VersionSpan(version, 0, int(n)),))
            for name, n in zip(names, lengths, strict=True)
        ]


async def score(prompt: Prompt, completions: Sequence[Completion]) -> list[Scored]:
    """A third of the prompts is always right, a third never, a third every other time."""
    kind = prompt.index % 3
    right = [float(kind == 0 or (kind == 1 and i % 2 == 0)) for i in range(len(completions))]
    return [Scored({"format": 1.0, "accuracy": r}, r == 1.0) for r in right]


async def score_by_chance(prompt: Prompt, completions: Sequence[Completion]) -> list[Scored]:
    """Right with the rate of the prompt, decided by the request's seed: whoever asks for the same samples
    finds the same."""
    rate = RATES[prompt.index % len(RATES)]
    lots = [zlib.crc32(c.text.encode()) / 2**32 for c in completions]
    return [Scored({"format": 1.0, "accuracy": float(lot < rate)}, lot < rate) for lot in lots]


@dataclass(slots=True)
class Newest:
    """The newest weight version, read from Redis at most every `FRESH_S`."""

    redis: Any
    keys: Keys
    known: int = 0
    read_at: float = -math.inf
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def version(self, at_least: int) -> int:
        """Not older than `FRESH_S`, and read again when what is known is older than `at_least`."""
        async with self.lock:
            if self.known < at_least or time.monotonic() - self.read_at > FRESH_S:
                self.known = int(await self.redis.hget(self.keys.state, "version") or 0)
                self.read_at = time.monotonic()
            return self.known


async def coordinate(
    config: Config,
    url: str,
    data: list[Prompt],
    fleet: Fleet,
    owner: str,
    scoring: Score | None = None,
    rank: Rank = unranked,
) -> Coordination:
    """Run one coordinator until all steps are trained; raises what stopped it. `scoring`: `score`."""
    redis = connect_async(url)
    newest = Newest(redis, Keys(config.run.name))

    def generate_at(min_version: int) -> Generate:
        async def generate(request: SamplingRequest) -> list[Completion]:
            version = await newest.version(min_version)
            assert version >= min_version, f"asked for version {min_version} while {version} is the newest"
            return await fleet(request, min_version)  # as a replica does that pulls only what it must

        return generate

    services = Services(
        generate_at=generate_at,
        score=scoring or score,
        producer=Producer(redis, config.run.name, config.rollout.prompts_per_batch, config.allocation.rounds),
        cycles=Cycles(redis, config, FixedPrior(1.0, 1.0), mixture_of(config.data.sources, data)),
        leases=Leases(redis, config.run.name, owner, LEASE_S),
        telemetry=Telemetry(redis, config.run.name),
        rank=rank,
    )
    coordination = Coordination(config, data, TOKENIZER, redis, services)
    try:
        await coordination.claim()
        await coordination.run()
    finally:
        await redis.aclose()
    return coordination


@dataclass(slots=True)
class Learner:
    """A learner whose optimizer is a timer: plans, reads and decodes each step's groups, sleeps, publishes.

    `trained[step]` are the group ids of the surviving step; `waited[step]` the seconds without groups. Stops
    before a step when `stop` is set, as a crash does: nothing is acknowledged that no checkpoint contains.
    """

    config: Config
    url: str
    seconds: Callable[[], float]
    checkpoint_every: int = 1
    stop: threading.Event = field(default_factory=threading.Event)
    trained: dict[int, list[str]] = field(default_factory=dict)
    waited: dict[int, float] = field(default_factory=dict)
    durable: int = 0

    def run(self) -> None:
        client, keys = connect(self.url), Keys(self.config.run.name)
        planner = Planner(client, self.config, Vocabulary(TOKENIZER, VOCABULARY), self.durable)
        reader = Reader(client, self.config, 0, 1, planner.kept)
        client.hset(keys.state, "step", self.durable)
        for step in range(self.durable, self.config.learner.steps):
            self.waited[step] = planner.plan(step, self._check)
            groups = reader.read(step)
            self._check()
            time.sleep(self.seconds())
            self.trained[step] = [g.id for g in groups]
            advance(client, self.config.run.name, step + 1)
            client.hset(keys.state, "step", step + 1)
            if (step + 1) % self.checkpoint_every == 0 or step + 1 == self.config.learner.steps:
                planner.durable(step + 1)
                self.durable = step + 1

    def _check(self) -> None:
        if self.stop.is_set():
            raise Stopped


class Stopped(Exception):
    """The simulated learner was told to die."""
