"""Pin one generator replica to one version of the weights for an evaluation, while training continues.

    asked before its step is published ─► pinned at that version ─► renewed every second ─► released

The evaluator chooses the replica and holds a lease on it (`pin_lease.py`). Training has priority: the only
living generator is never pinned. After a lost pin the evaluation continues on all replicas.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from hora_rl.actors.generator.pin import chosen
from hora_rl.common.config import Config
from hora_rl.common.live import pin_lease
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import AsyncRedis, text_of
from hora_rl.common.live.telemetry import SILENT_S
from hora_rl.common.types import Pinned

POLL_S = 0.2
Beats = Mapping[str, Mapping[str, Any]]
"""Newest heartbeat of each living generator replica, by name."""


class Pinning:
    """The pin of one run's evaluations, one at a time. `say` receives a line when a pin is lost. `held` is
    the pinned replica with its version, or None."""

    def __init__(self, config: Config, client: AsyncRedis, say: Callable[[str], None]) -> None:
        self._config, self._redis, self._say = config, client, say
        self._run = config.run.name
        self._asked: Pinned | None = None
        self.held: Pinned | None = None

    async def ask(self, step: int) -> Mapping[str, Any] | None:
        """Request or renew a pin at version `step`. Returns the replica's heartbeat; None if no replica can
        be spared."""
        living = await self._living()
        if not self._is_possible(living):
            await self.release()
            return None
        if self._asked is None or self._asked.version != step or self._asked.replica not in living:
            self._asked = Pinned(choose(step, living), step)
        await pin_lease.ask(self._redis, self._run, self._asked)
        return living[self._asked.replica]

    async def hold(self, step: int) -> Pinned | None:
        """Wait until a replica is pinned at version `step` or newer. None if none is."""
        deadline = time.monotonic() + self._config.weights.update_limit_s
        while (beat := await self.ask(step)) is not None:
            if self._asked is not None and beat.get("pinned", -1) >= step:
                self.held = Pinned(self._asked.replica, int(beat["pinned"]))
                return self.held
            if time.monotonic() > deadline:
                await self._lose("did not get there in time")
                break
            await asyncio.sleep(POLL_S)
        return None

    async def renew(self) -> None:
        """Renew the held pin. Release it if the replica lost it or training needs the replica."""
        asked, held = self._asked, self.held
        if asked is None or held is None:
            return
        living = await self._living()
        if self.held is not held:
            return  # released during the call
        if living.get(asked.replica, {}).get("pinned") != held.version:
            await self._lose("is gone, or has taken newer weights")
        elif not self._is_possible(living):
            await self._lose("is needed by training: no other generator is alive")
        else:
            await pin_lease.ask(self._redis, self._run, asked)

    async def release(self) -> None:
        """End the pin, if any."""
        self.held = None
        if self._asked is not None:
            self._asked = None
            await pin_lease.release(self._redis, self._run)

    async def _lose(self, why: str) -> None:
        asked = self._asked
        await self.release()
        if asked is not None:
            self._say(
                f"{asked.replica}, which was to stay at the weights of step {asked.version} for their "
                f"evaluation, {why}: all replicas sample the rest, and the result names the versions they had"
            )

    def _is_possible(self, living: Beats) -> bool:
        """Whether another replica would remain for training."""
        return self._config.generator.sleep == "none" and self._config.evaluation.pins(len(living))

    async def _living(self) -> Beats:
        raw, now = await self._redis.hgetall(Keys(self._run).parts), time.time()
        beats = {text_of(name): json.loads(text) for name, text in raw.items()}
        return {
            name: beat
            for name, beat in beats.items()
            if name.startswith("generator/") and beat["seen"] > now - SILENT_S and beat["state"] != "failed"
        }


def choose(step: int, living: Beats) -> str:
    """The replica to pin at version `step`, by a hash of the step: among those that hold the version, or
    among all if none does."""
    there = [name for name, beat in living.items() if beat["version"] >= step]
    return chosen(str(step), there or living)
