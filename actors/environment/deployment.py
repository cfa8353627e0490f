"""Serve deployment `environment`: multi-turn episodes with the policy of the generator replicas.

Environments have separate replicas, so a slow tool does not occupy a generator. Only complete episodes are
stored. If a replica dies, the coordinator requests the episodes again.
"""

import os
from collections import Counter

import structlog
from ray.serve.handle import DeploymentHandle

from hora_rl.actors.coordinator.calls import generator_calls
from hora_rl.actors.coordinator.sampling import Generate
from hora_rl.actors.environment.episodes import Episodes
from hora_rl.actors.environment.registry import environment_of
from hora_rl.actors.environment.tools import SandboxTools
from hora_rl.actors.environment.watchdog import watchdog
from hora_rl.actors.replica import Replica
from hora_rl.common.config.environment import ATTEMPTS
from hora_rl.common.data.prompts import load_tokenizer
from hora_rl.common.live.heartbeats import EnvironmentBeat
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.live.state import changed
from hora_rl.common.live.telemetry import Telemetry
from hora_rl.common.types import Completion, Failed, SamplingRequest

log = structlog.get_logger(__name__)
SANDBOXES = 4
STARTED_S = 600
"""Time in seconds to start a new replica and send requests to it."""


class Environment(Replica):
    """`config` is a dumped `Config`. Deployment `generator` samples the policy's turns."""

    async def __init__(  # type: ignore[misc]
        self, config: dict[str, object], redis_url: str, generator: DeploymentHandle
    ) -> None:
        super().__init__("environment", config, redis_url)
        self._generator, model = generator, self._config.model
        environment = environment_of(self._config.environment, self._run)
        function = await self._held.enter_async_context(environment)
        tokenizer = load_tokenizer(model.path, model.trust_remote_code)
        tools = SandboxTools(SANDBOXES)
        self._held.callback(tools.close)
        self._telemetry, self._counts = Telemetry(self._redis, self._run), Counter[str]()
        self._episodes = Episodes(self._config, tokenizer, function, tools, self._count)
        self._redis_url = redis_url
        self._held.enter_context(watchdog(self._config.environment.time_limit_s, self._end_blocked))
        self._beat(self._state)

    async def sample(
        self, request: SamplingRequest, min_version: int, temperature: float, weights_come: bool
    ) -> list[Completion] | Failed:
        """`request.n` episodes on the prompt's row, on weights of version `min_version` or newer."""

        def turns(version: int, episode: str) -> Generate:
            return generator_calls(
                self._generator,
                self._config.rollout,
                self._config.weights,
                version,
                temperature,
                weights_come=weights_come,
                session=episode,
            )

        try:
            return await self._episodes.make(request, min_version, turns)
        finally:
            await self._telemetry.flush()

    def _end_blocked(self, line: str) -> None:
        """Exit this replica, whose event loop is blocked at `line`, so that Serve starts another. Stop the
        run after ATTEMPTS such exits in quick succession. Called from the watchdog's thread."""
        config, keys = self._config, Keys(self._run)
        reason = (
            f"environment {config.environment.path} blocks its replica at {line}, and no episode there "
            "moves on or can be cancelled: await what takes long, or use asyncio.to_thread"
        )
        log.error("a blocked replica exits", reason=reason)
        try:
            client = connect(self._redis_url)
            client.hincrby(keys.counters, "episodes_lost:blocks", 1)
            times = client.incr(keys.blocked)
            # An environment that always blocks will block the next replica within this time.
            client.expire(keys.blocked, int(2 * config.environment.time_limit_s) + STARTED_S)
            if times >= ATTEMPTS:
                client.hset(keys.state, mapping=changed(error=reason))
        finally:
            os._exit(1)

    def _count(self, name: str, amount: int) -> None:
        self._counts[name] += amount
        self._telemetry.add(name, amount)

    def _state(self) -> EnvironmentBeat:
        return {"state": "serving", "running": self._episodes.running, "counts": dict(self._counts)}
