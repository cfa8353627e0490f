"""A generator replica: one vLLM engine and its weights. Requests never run on weights older than they allow.

An unhealthy replica exits; Serve starts another, and the remaining replicas continue.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import structlog

from hora_rl.actors.concurrency import all_of
from hora_rl.actors.generator.places import Admission
from hora_rl.actors.generator.sleep import keep_watch, wait_for_card
from hora_rl.actors.generator.starting import stage_shown
from hora_rl.actors.replica import Replica
from hora_rl.common.errors import StaleWeights, UnhealthyError
from hora_rl.common.live.heartbeats import GeneratorBeat
from hora_rl.common.types import Completion, SamplingRequest
from hora_rl.common.weights.held_weights import HeldWeights

if TYPE_CHECKING:
    from hora_rl.actors.generator.vllm_engine import Engine

log = structlog.get_logger(__name__)
EXIT_S = 0.2


class Generator(Replica):
    """Serve deployment `generator`. `config` is a dumped `Config`."""

    async def __init__(self, config: dict[str, Any], redis_url: str) -> None:  # type: ignore[misc]
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
        self._places = Admission(
            self._name,
            self._config.generator.max_requests,
            self._config.evaluation.max_sequences,
        )
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
            with self._places.held(requests):
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

    # The learner broadcasts these: a roll call, and the calls of vLLM's weight-sync client.

    async def answer_roll_call(self) -> dict[str, object]:
        """Name and version of this replica. Raises UnhealthyError."""
        await self.check_health()
        return self._weights.roll_call()

    async def init_weight_transfer_engine(
        self, info: dict[str, Any], members: tuple[str, ...], group: str
    ) -> None:
        await self._weights.join(info, members, group)

    async def update_weights(self, info: dict[str, Any], version: int, group: str) -> None:
        await self._weights.update(info, version, group)

    async def finish_weight_update(self, version: str) -> dict[str, Any]:
        return self._weights.confirm(int(version))

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
