"""A verifier replica: scores completions in worker processes. A hostile answer can kill only such a
process."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Sequence

from ray import serve

from hora_rl.actors.verifier.errors import VerifierUnavailable
from hora_rl.actors.verifier.pool import Item, VerifierPool, default_processes
from hora_rl.common import logs
from hora_rl.common.config import Config
from hora_rl.common.data.user_rewards import Answer
from hora_rl.common.live.redis import connect_async
from hora_rl.common.live.telemetry import HEARTBEAT_S, keep_beating, stop_beating

FAULTS_IN_A_ROW = 3
"""After so many pool failures in a row the replica is unhealthy, and Serve replaces it."""


class Verifier:
    """Serve deployment `verifier`. `config` is a dumped `Config`. Redis gets the heartbeat."""

    async def __init__(self, config: dict[str, object], redis_url: str) -> None:  # type: ignore[misc]
        checked = Config.model_validate(config)
        logs.configure(checked.telemetry.logs, run=checked.run.name, part="verifier")
        self._run, self._redis = checked.run.name, connect_async(redis_url)
        self._name = f"verifier/{serve.get_replica_context().replica_id.unique_id}"
        self._processes = checked.verifier.processes or default_processes()
        sources = {name: checked.of(name).reward for name in checked.source_names}
        self._pool = VerifierPool(checked.reward, self._processes, sources=sources)
        self._faults = 0
        self._scored, self._at = 0, time.monotonic()
        beating = keep_beating(self._redis, self._run, self._name, self._state)
        self._beat = asyncio.get_running_loop().create_task(beating)

    async def score(self, items: Sequence[Item]) -> list[dict[str, float]]:
        """Rewards by name of each (problem, completion, gold answer), in the order of `items`.

        Raises VerifierUnavailable if no answer was judged (retry), and ValueError if a user's reward fails or
        tests cannot run.
        """
        return await self._counting_faults(self._pool.score_batch(items))

    async def score_group(self, items: Sequence[Answer]) -> list[dict[str, float]]:
        """Group rewards of each completion of one group, in the order of `items`. Raises as `score` does."""
        return await self._counting_faults(self._pool.score_group(items))

    async def _counting_faults(self, work: Awaitable[list[dict[str, float]]]) -> list[dict[str, float]]:
        try:
            scored = await work
        except VerifierUnavailable:
            self._faults += 1
            raise
        self._faults = 0
        return scored

    async def stats(self) -> dict[str, int]:
        """Counters of this replica since its start."""
        return self._pool.stats()

    async def check_health(self) -> None:
        """Raise after repeated pool failures. A replica busy with hostile answers is healthy."""
        if self._faults >= FAULTS_IN_A_ROW:
            raise RuntimeError(f"the process pool failed {self._faults} times in a row")

    async def __del__(self) -> None:
        if hasattr(self, "_beat"):
            await stop_beating(self._beat)
        if hasattr(self, "_pool"):  # missing when the configuration was refused
            self._pool.close()

    def _state(self) -> dict[str, object]:
        """The heartbeat, with the rate of answers since the last one."""
        stats, away, now = self._pool.stats(), self._pool.away, time.monotonic()
        rate = (stats["scored"] - self._scored) / max(now - self._at, HEARTBEAT_S)
        self._scored, self._at = stats["scored"], now
        return {
            "state": "failing" if self._faults else "serving",
            "answers_per_s": round(rate, 2),
            **({"away": "; ".join(f"{name}: {why}" for name, why in away.items())} if away else {}),
            "waiting": self._pool.waiting,
            "scored": self._scored,
            "killed": stats["killed"],
            "processes": self._processes,
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
