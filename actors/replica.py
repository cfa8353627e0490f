"""What the replicas of all deployments share: a configuration, a Redis client, a heartbeat, an end."""

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack

from ray import serve

from hora_rl.common import logs
from hora_rl.common.config import Config
from hora_rl.common.live.redis import connect_async
from hora_rl.common.live.telemetry import Beat, keep_beating, stop_beating


class Replica:
    """A replica of the deployment `kind`. `config` is a dumped `Config`. `_held` is closed at the end."""

    def __init__(self, kind: str, config: Mapping[str, object], redis_url: str) -> None:
        self._held = AsyncExitStack()
        self._config = Config.model_validate(config)
        self._run = self._config.run.name
        logs.configure(self._config.telemetry.logs, run=self._run, part=kind)
        self._redis = connect_async(redis_url)
        self._name = f"{kind}/{serve.get_replica_context().replica_id.unique_id}"

    def _beat(self, state: Callable[[], Beat]) -> None:
        """Write `state()`, host and process id once a second, until the end."""
        process: Beat = {"host": socket.gethostname(), "pid": os.getpid()}
        beating = keep_beating(self._redis, self._run, self._name, lambda: {**state(), **process})
        self._held.push_async_callback(stop_beating, asyncio.get_running_loop().create_task(beating))

    def _begin(self, work: Coroutine[None, None, object]) -> asyncio.Task[object]:
        task = asyncio.get_running_loop().create_task(work)
        self._held.callback(task.cancel)
        return task

    async def __del__(self) -> None:
        if hasattr(self, "_held"):
            await self._held.aclose()
