"""Serve deployment `environment`: multi-turn episodes with the policy of the generator replicas.

Environments have separate replicas, so a slow tool does not occupy a generator. Only complete episodes are
stored. If a replica dies, the coordinator requests the episodes again. An environment that blocks its
replica's event loop would stop all episodes and prevent their cancellation: a watchdog ends the replica.
"""

import asyncio
import os
import sys
import sysconfig
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from ray.serve.handle import DeploymentHandle

from hora_rl.actors.coordinator.calls import generator_calls
from hora_rl.actors.coordinator.sampling import Generate
from hora_rl.actors.environment.episodes import Episodes
from hora_rl.actors.environment.policy import SandboxTools
from hora_rl.actors.environment.registry import environment_of
from hora_rl.actors.replica import Replica
from hora_rl.common.config.environment import ATTEMPTS
from hora_rl.common.data.prompts import load_tokenizer
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.live.state import changed
from hora_rl.common.live.telemetry import EnvironmentBeat, Telemetry
from hora_rl.common.processes import background_thread
from hora_rl.common.types import Completion, Failed, SamplingRequest

LONGEST_S = 60.0
"""Upper bound of the limit in seconds. After a longer block Serve replaces the replica without a reason."""
LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
log = structlog.get_logger(__name__)
SANDBOXES = 4
STARTED_S = 600
"""Time in seconds to start a new replica and send requests to it."""


@contextmanager
def watchdog(limit_s: float, blocked: Callable[[str], None]) -> Iterator[None]:
    """Watch the current event loop while the block runs. If it is blocked for `limit_s` seconds, call
    `blocked(place)` once from a separate thread. `place` is the current line of the user's code."""
    loop, owner, limit_s = asyncio.get_running_loop(), threading.get_ident(), min(limit_s, LONGEST_S)

    def watch(over: threading.Event) -> None:
        while not over.wait(limit_s / 4):
            moved = threading.Event()
            try:
                loop.call_soon_threadsafe(moved.set)
            except RuntimeError:  # the loop is closed
                return
            if not moved.wait(limit_s) and not over.is_set():
                blocked(place_of(owner))
                return

    with background_thread("watchdog", watch, limit_s=0.0):
        yield


def place_of(thread: int) -> str:
    """Current line of the thread: the innermost frame outside the standard library and installed packages."""
    stack = traceback.extract_stack(sys._current_frames()[thread])
    frames = [frame for frame in stack if not frame.filename.startswith((*LIBRARIES, "<"))]
    frame = (frames or stack)[-1]
    return f"{frame.filename}:{frame.lineno} in {frame.name}"


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
        handle, rollout, weights = self._generator, self._config.rollout, self._config.weights

        def turns(version: int, episode: str) -> Generate:
            return generator_calls(
                handle, rollout, weights, version, temperature, weights_come=weights_come, session=episode
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
