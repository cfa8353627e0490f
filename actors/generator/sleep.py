"""When a generator that shares a card with the learner frees it, and when its engine wakes without the
learner.

    the learner: plans step s ─► asks to sleep ─► engine asleep ─► steps ─► publishes s+1
    the replica:                                               └─► loads s+1, which wakes it

The learner's heartbeat shows that a step is running. Otherwise the engine wakes with its current weights. So
no engine stays asleep if the learner dies, repeats steps without publishing, or loses its call to load. A
replica that starts during a step waits for the end of the step.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

import structlog

from hora_rl.common.live.heartbeats import LearnerBeat
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import AsyncRedis
from hora_rl.common.live.telemetry import HEARTBEAT_S, LEADER, SILENT_S, STEPPING, TO_SLEEP, repeat

if TYPE_CHECKING:
    from hora_rl.common.weights.held_weights import HeldWeights

log = structlog.get_logger(__name__)
POLL_S = 0.5
DEAD_S = 60.0
"""After so many seconds without a heartbeat the learner has no running step. Longer than `SILENT_S`: a
learner that only failed to write heartbeats would run out of memory."""


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
