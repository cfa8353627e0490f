"""Appends the run's counters and levels to its history once a second. Views compute rates from the history.

Only coordinators write it, so the history does not depend on whether anyone watches the run.
"""

import json
import time
from collections.abc import Mapping

import redis.asyncio

from hora_rl.common.live.keys import Keys
from hora_rl.common.live.queue import depth_of
from hora_rl.common.live.redis import Answer, text_of
from hora_rl.common.live.state import SharedState
from hora_rl.common.live.telemetry import FLOWS, HISTORY, LOOKS, living, repeat

SAMPLE_S = 1.0
FORGOTTEN_S = 3600.0
KEPT = ("learner/", "coordinator/")


async def write_history(client: redis.asyncio.Redis, run: str, per_step: int) -> None:
    """Append a sample every second until cancelled. `per_step` is the number of groups of a step."""
    await repeat(SAMPLE_S, lambda: write_sample(client, run, per_step, time.time()), "no history sample")


async def write_sample(client: redis.asyncio.Redis, run: str, per_step: int, now: float) -> None:
    """Append a sample at `now` (seconds since the epoch), unless another coordinator appended one less than a
    second ago."""
    keys = Keys(run)
    if not await client.set(f"{keys.history}:lock", "1", nx=True, px=int(SAMPLE_S * 900)):
        return
    async with client.pipeline(transaction=False) as pipe:
        pipe.hmget(keys.counters, FLOWS)
        pipe.hgetall(keys.state)
        pipe.xlen(keys.groups)
        pipe.hlen(keys.ledger)
        pipe.hgetall(keys.parts)
        totals, raw, length, steps, parts = await pipe.execute()
    state = SharedState.parse(raw)
    sample = {
        "time": now,
        "depth": depth_of(length, steps, state.durable_step, per_step),
        "version": state.version,
        "oldest_replica": oldest_replica(parts, now),
        **{flow: int(total or 0) for flow, total in zip(FLOWS, totals, strict=True)},
    }
    async with client.pipeline(transaction=True) as pipe:
        pipe.xadd(keys.history, {"sample": json.dumps(sample)}, maxlen=HISTORY, approximate=True)
        # A paused run does not count as idle.
        load = [b.get("running", 0) + b.get("waiting", 0) for b in living(parts, "generator", now)]
        looks = (0, 0) if state.paused else (len(load), load.count(0))  # generators, and those that idle
        for counter, n in zip(LOOKS, looks, strict=True):
            pipe.hincrby(keys.counters, counter, n)
        await pipe.execute()
    if gone := long_gone(parts, now):
        await client.hdel(keys.parts, *gone)


def long_gone(parts: Mapping[Answer, Answer], now: float) -> list[Answer]:
    """Replicas without a heartbeat for an hour: views need not show them. Views always show learner and
    coordinator."""
    replicas = ((name, text) for name, text in parts.items() if not text_of(name).startswith(KEPT))
    return [name for name, text in replicas if now - json.loads(text)["seen"] > FORGOTTEN_S]


def oldest_replica(parts: Mapping[Answer, Answer], now: float) -> int | None:
    """The oldest weight version of the living generators. None without one."""
    return min((beat.get("version", 0) for beat in living(parts, "generator", now)), default=None)
