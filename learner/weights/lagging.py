"""Whether a replica was left behind by the last sending of the weights, by the heartbeats."""

from __future__ import annotations

from collections.abc import Callable

import redis

from hora_rl.common.live.keys import Keys
from hora_rl.common.live.telemetry import beats

RESEND_S = 5.0  # shortest time between two sendings of one version
LAG_S = 1.0  # difference of clocks of two machines


class Lagging:
    """`clock` gives seconds since the epoch."""

    def __init__(self, run: str, steps: int, client: redis.Redis, clock: Callable[[], float]) -> None:
        self._redis, self._parts, self._clock = client, Keys(run).parts, clock
        self._steps = steps
        self._sent_at = 0.0

    def sent(self) -> None:
        """Replicas that hold less after this are sent the version again."""
        self._sent_at = self._clock()

    def behind(self, version: int) -> bool:
        """Whether a replica with a heartbeat since the last sending holds less than `version`."""
        if self._clock() < self._sent_at + RESEND_S:
            return False
        replicas = beats(self._redis.hgetall(self._parts), "generator")
        due = [r for r in replicas if self.is_last(version) or "pinned" not in r]
        return any(r["version"] < version for r in due if r["seen"] > self._sent_at + LAG_S)

    def is_last(self, version: int) -> bool:
        """Whether no version follows. It ends every pin, because nobody could send it later."""
        return version >= self._steps
