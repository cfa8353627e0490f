"""A generator replica: one vLLM engine and its weights. Requests never run on weights older than they allow.
An unhealthy replica exits; Serve starts another, and the remaining replicas continue.

A replica that shares a card with the learner frees it for each step:

    the learner: plans step s ─► asks to sleep ─► engine asleep ─► steps ─► publishes s+1
    the replica:                                               └─► loads s+1, which wakes it

The learner's heartbeat shows that a step is running. Otherwise the engine wakes with its current weights: so
it does if the learner dies, repeats steps without publishing, or loses its call to load. A replica that
starts during a step waits for the end of the step."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
from redis.exceptions import RedisError

from hora_rl.actors.concurrency import all_of
from hora_rl.actors.generator.failures import stage_now
from hora_rl.actors.replica import Replica
from hora_rl.common.errors import NoRoom, StaleWeights, UnhealthyError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import AsyncRedis, connect
from hora_rl.common.live.telemetry import (
    ENGINE,
    HEARTBEAT_S,
    LEADER,
    SILENT_S,
    STEPPING,
    TO_SLEEP,
    GeneratorBeat,
    LearnerBeat,
    heartbeat_now,
    repeat,
)
from hora_rl.common.processes import background_thread
from hora_rl.common.types import BELOW_TRAINING, Completion, SamplingRequest
from hora_rl.common.weights.held_weights import HeldWeights

if TYPE_CHECKING:
    from hora_rl.actors.generator.vllm_engine import Engine
    from hora_rl.common.weights.held_weights import HeldWeights

log = structlog.get_logger(__name__)
POLL_S = 0.5
DEAD_S = 60.0
"""After so many seconds without a heartbeat the learner has no running step. Longer than `SILENT_S`: a
learner that only failed to write heartbeats would run out of memory."""
EXIT_S = 0.2


async def wait_for_card(client: AsyncRedis, run: str) -> None:
    """Wait until no learner runs a step: a starting engine would take its memory."""
    while True:
        beat = await _learner(client, run)
        if beat.get("state") != STEPPING or time.time() - beat["seen"] > SILENT_S:
            return
        await asyncio.sleep(POLL_S)


async def keep_watch(weights: HeldWeights, client: AsyncRedis, run: str) -> None:
    """Wake the engine if no learner will."""

    async def look() -> None:
        since = weights.asleep_since
        if since is not None and is_left(await _learner(client, run), since, time.time()):
            log.warning("no learner is in a step; the engine wakes", version=weights.version)
            await weights.wake(since)

    await repeat(POLL_S, look, "cannot see the learner; a sleeping engine sleeps on")


def is_left(beat: LearnerBeat, since: float, now: float) -> bool:
    """Whether no learner will wake an engine asleep since `since`. `beat` is the learner's newest heartbeat;
    one older than `since` belongs to an earlier wait."""
    seen = float(beat.get("seen", 0.0))
    if max(seen, since) < now - DEAD_S:
        return True
    return seen > since + HEARTBEAT_S and beat["state"] not in (STEPPING, TO_SLEEP)


async def _learner(client: AsyncRedis, run: str) -> LearnerBeat:
    beat: LearnerBeat = json.loads(await client.hget(Keys(run).parts, LEADER) or "{}")
    return beat


@dataclass(slots=True)
class Admission:
    """Admits up to `requests` calls to a replica, and up to `low_priority` completions of lower priority than
    training: vLLM does not stop running requests, so an evaluation could hold the whole replica."""

    name: str
    requests: int
    low_priority: int
    sampling: int = 0
    sampling_low: int = 0

    @contextmanager
    def admitted(self, requests: Sequence[SamplingRequest]) -> Iterator[None]:
        """Admit one call. Raises NoRoom if the replica is full. A single call may exceed `low_priority`."""
        if self.sampling >= self.requests:
            raise NoRoom(f"{self.name} has {self.sampling} requests")
        n = sum(r.n for r in requests if r.priority >= BELOW_TRAINING)
        if n and self.sampling_low and self.sampling_low + n > self.low_priority:
            raise NoRoom(f"{self.name} samples {self.sampling_low} completions of an evaluation")
        self.sampling += 1
        self.sampling_low += n
        try:
            yield
        finally:
            self.sampling -= 1
            self.sampling_low -= n


class Generator(Replica):
    """Serve deployment `generator`. `config` is a dumped `Config`."""

    async def __init__(self, config: dict[str, object], redis_url: str) -> None:  # type: ignore[misc]
        super().__init__("generator", config, redis_url)
        with stage_shown(redis_url, self._run, self._name.partition("/")[2]):
            await self._load()
        self._beat(self._state)

    async def _load(self) -> None:
        from vllm import envs

        from hora_rl.actors.generator import vllm_engine  # the import takes seconds

        sleeps = self._config.generator.sleep != "none"
        if sleeps:
            await wait_for_card(self._redis, self._run)
        self._engine = vllm_engine.Engine(self._config, self._name.partition("/")[2])
        self._held.callback(self._engine.shutdown)
        parallel = self._config.generator.tensor_parallel
        self._weights = HeldWeights(
            self._config.weights, parallel, self._engine, self._redis, self._run, self._name
        )
        most, low_priority = self._config.generator.max_requests, self._config.evaluation.max_sequences
        self._admission = Admission(self._name, most, low_priority)
        await self._engine.begin()
        envs.enable_envs_cache()  # vLLM would read its environment for every token
        if self._config.weights.transport == "file":
            with suppress(StaleWeights):  # requests pull newer weights later
                await self._weights.catch_up()
        if sleeps:
            self._begin(keep_watch(self._weights, self._redis, self._run))

    async def generate(
        self, requests: Sequence[SamplingRequest], min_version: int, temperature: float
    ) -> list[list[Completion]]:
        """Sample each request on weights of version `min_version` or newer. Raises StaleWeights if they do
        not arrive in time, and NoRoom if the replica is full."""
        try:
            with self._admission.admitted(requests):
                await self._weights.reach(min_version)
                return await all_of(
                    self._engine.generate(
                        request.prompt.tokens,
                        request.n,
                        request.seed,
                        temperature,
                        request.priority,
                        request.max_tokens,
                        request.truncation,
                    )
                    for request in requests
                )
        except UnhealthyError:
            # A replica that fails immediately looks idle, and would attract all requests.
            exit_soon()
            raise

    # The learner broadcasts these (`common.weights.replica_calls.BroadcastClient`).

    async def roll_call(self) -> dict[str, object]:
        """Name and version of this replica. Raises UnhealthyError."""
        await self.check_health()
        return self._weights.confirm(0)

    async def join(self, info: dict[str, object], members: tuple[str, ...], group: str) -> None:
        await self._weights.join(info, members, group)

    async def update(self, info: dict[str, object], version: int, group: str) -> None:
        await self._weights.update(info, version, group)

    async def confirm(self, version: int) -> dict[str, object]:
        return self._weights.confirm(version)

    async def sleep(self, version: int) -> str:
        """Free the card for a step of the learner from weights `version`. Returns the replica's name."""
        await self._weights.sleep(version)
        return self._name

    async def check_health(self) -> None:
        await check_or_exit(self._weights, self._engine)

    def _state(self) -> GeneratorBeat:
        load = self._engine.load
        return {
            **self._weights.state(),
            "running": load.running,
            "waiting": load.waiting,
            "cache": load.cache,
            "prefix_hits": load.prefix_hits,
            "prefix_queries": load.prefix_queries,
        }


async def check_or_exit(weights: HeldWeights, engine: Engine) -> None:
    """Raise if the replica is unhealthy, then exit. Serve would wait for requests that cannot finish; the
    exit makes callers retry them elsewhere."""
    try:
        weights.check()
        await engine.check_health()
    except UnhealthyError as error:
        log.error("an unhealthy replica exits", reason=str(error))
        exit_soon()
        raise


def exit_soon() -> None:
    """End this process and its engine shortly after the current call returns."""
    asyncio.get_running_loop().call_later(EXIT_S, os._exit, 1)


@contextmanager
def stage_shown(redis_url: str, run: str, name: str) -> Iterator[None]:
    """Write heartbeats of the engine `name` with its stage during the block. vLLM loads an engine in one
    call, so a thread writes them."""
    client, part = connect(redis_url), f"{ENGINE}/{name}"

    def beat(over: threading.Event) -> None:
        while not over.wait(HEARTBEAT_S):
            with suppress(RedisError):  # the next one follows
                heartbeat_now(client, run, part, {"state": stage_now()})

    try:
        with background_thread("stage", beat):
            yield
    finally:
        with suppress(RedisError):
            client.hdel(Keys(run).parts, part)
        client.close()
