"""A verifier replica: scores completions in worker processes. A hostile answer can kill only such a
process."""

import time
from collections.abc import Awaitable, Sequence

from hora_rl.actors.replica import Replica
from hora_rl.actors.verifier.pool import Item, VerifierPool, default_processes
from hora_rl.common.data.rewards import Answer
from hora_rl.common.errors import VerifierUnavailable
from hora_rl.common.live.telemetry import HEARTBEAT_S, VerifierBeat

FAULTS_IN_A_ROW = 3
"""After so many pool failures in a row the replica is unhealthy, and Serve replaces it."""


class Verifier(Replica):
    """Serve deployment `verifier`. `config` is a dumped `Config`. Redis gets the heartbeat."""

    async def __init__(self, config: dict[str, object], redis_url: str) -> None:  # type: ignore[misc]
        super().__init__("verifier", config, redis_url)
        settings = self._config
        self._processes = settings.verifier.processes or default_processes()
        sources = {name: settings.of(name).reward for name in settings.source_names}
        self._pool = VerifierPool(settings.reward, self._processes, sources=sources)
        self._held.callback(self._pool.close)
        self._faults = 0
        self._scored, self._at = 0, time.monotonic()
        self._beat(self._state)

    async def score(self, items: Sequence[Item]) -> list[dict[str, float]]:
        """Rewards by name of each (problem, completion, gold answer), in order. Raises VerifierUnavailable if
        no answer was judged (retry), and ValueError if a user's reward fails or tests cannot run."""
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

    async def check_health(self) -> None:
        """Raise after repeated pool failures. A replica busy with hostile answers is healthy."""
        if self._faults >= FAULTS_IN_A_ROW:
            raise RuntimeError(f"the process pool failed {self._faults} times in a row")

    def _state(self) -> VerifierBeat:
        stats, away, now = self._pool.stats(), self._pool.away, time.monotonic()
        rate = (stats["scored"] - self._scored) / max(now - self._at, HEARTBEAT_S)
        self._scored, self._at = stats["scored"], now
        beat: VerifierBeat = {
            "state": "failing" if self._faults else "serving",
            "answers_per_s": round(rate, 2),
            "waiting": self._pool.waiting,
            "scored": self._scored,
            "killed": stats["killed"],
            "processes": self._processes,
        }
        if away:
            beat["away"] = "; ".join(f"{name}: {why}" for name, why in away.items())
        return beat
