"""When a generator that shares its card sleeps, what wakes it, and when a new one may start. Timers are in
place of vLLM, and Redis is real."""

import asyncio
import time
from typing import Any

import pytest

from hora_rl.actors.generator import sleep
from hora_rl.actors.generator.held_weights import HeldWeights
from hora_rl.actors.generator.sleep import DEAD_S, is_left, keep_watch, wait_for_card
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect, connect_async
from hora_rl.common.live.telemetry import HEARTBEAT_S, LEADER, SILENT_S, STEPPING, TO_SLEEP, heartbeat_now
from tests.support.held_engine import Engine, member


async def awake(redis: Any = None) -> tuple[HeldWeights, Engine]:
    weights, engine = await member(redis, limit_s=1.0)
    await weights.update({}, 4, "g")
    return weights, engine


async def test_an_update_that_is_late_does_not_wake_the_engine_and_the_next_version_does() -> None:
    weights, engine = await awake()
    await weights.sleep(4)
    assert weights.state()["state"] == "asleep"
    await weights.update({}, 3, "g")
    assert engine.did == ["install 4", "sleep"]
    await weights.update({}, 5, "g")
    assert engine.did == ["install 4", "sleep", "install 5"]
    assert (weights.state()["state"], weights.asleep_since) == ("serving", None)


async def test_an_engine_falls_asleep_at_the_version_of_the_step_and_not_before() -> None:
    weights, engine = await awake()
    sleeping = asyncio.create_task(weights.sleep(5))
    await asyncio.sleep(0.1)
    assert engine.did == ["install 4"]
    await weights.update({}, 5, "g")
    await sleeping
    assert engine.did == ["install 4", "install 5", "sleep"]


@pytest.mark.parametrize("trouble", [RuntimeError("Memory usage increased after sleeping."), None])
async def test_an_engine_that_does_not_fall_asleep_is_unhealthy(trouble: Exception | None) -> None:
    weights, engine = await awake()
    engine.sleep_s, engine.trouble = (0.0, {"sleep": trouble}) if trouble else (30.0, {})
    with pytest.raises((RuntimeError, TimeoutError)):
        await weights.sleep(4)
    assert weights.state()["state"] == "failed"
    assert weights.asleep_since is None


NOW = 1e6
LONG_AGO = NOW - 2 * DEAD_S


@pytest.mark.parametrize(
    ("state", "age", "since", "left"),
    [
        (STEPPING, 0.0, LONG_AGO, False),
        (STEPPING, SILENT_S + 1, LONG_AGO, False),
        (STEPPING, DEAD_S + 1, LONG_AGO, True),
        (TO_SLEEP, 0.0, LONG_AGO, False),
        ("waiting", 0.0, LONG_AGO, True),
        ("starting", 0.0, LONG_AGO, True),
        ("waiting", DEAD_S - 1, NOW - DEAD_S + 1, False),
        ("waiting", 0.2, NOW - 0.1, False),  # a heartbeat from before it slept
        ("waiting", 0.0, NOW - HEARTBEAT_S / 2, False),
        (None, 0.0, NOW - 1, False),
        (None, 0.0, NOW - DEAD_S - 1, True),
    ],
)
def test_who_is_left_asleep(state: str | None, age: float, since: float, left: bool) -> None:
    beat = {"state": state, "seen": NOW - age} if state else {}
    assert is_left(beat, since, NOW) == left


async def test_it_wakes_by_itself_when_the_learner_waits_and_not_while_it_steps(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sleep, "POLL_S", 0.02)
    monkeypatch.setattr(sleep, "HEARTBEAT_S", 0.05)
    client = connect(redis_url)
    redis = connect_async(redis_url)
    weights, engine = await awake(redis)
    heartbeat_now(client, "watch", LEADER, {"state": STEPPING, "step": 4})
    watch = asyncio.create_task(keep_watch(weights, redis, "watch"))
    await weights.sleep(4)
    await asyncio.sleep(0.3)
    assert engine.did[-1] == "sleep"
    heartbeat_now(client, "watch", LEADER, {"state": "waiting", "step": 5})
    await asyncio.sleep(0.3)
    assert engine.did[1:] == ["sleep", "wake"]
    assert weights.asleep_since is None
    watch.cancel()
    await redis.aclose()


async def test_one_that_was_put_to_sleep_again_meanwhile_sleeps_on() -> None:
    weights, engine = await awake()
    await weights.sleep(4)
    first = weights.asleep_since
    assert first is not None
    await asyncio.sleep(0.01)
    await weights.sleep(4)
    await weights.wake(first)
    assert "wake" not in engine.did


async def test_a_replica_starts_only_between_steps(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sleep, "POLL_S", 0.02)
    client = connect(redis_url)

    async def starts(state: str | None, seen: float = 0.0) -> bool:
        redis = connect_async(redis_url)
        client.delete(Keys("start").parts)
        if state is not None:
            heartbeat_now(client, "start", LEADER, {"state": state})
        monkeypatch.setattr(sleep.time, "time", lambda now=time.time: now() + seen)
        try:
            await asyncio.wait_for(wait_for_card(redis, "start"), 0.3)
        except TimeoutError:
            return False
        finally:
            monkeypatch.undo()
            await redis.aclose()
        return True

    assert await starts(None), "there is no learner yet"
    assert not await starts(STEPPING)
    assert await starts(TO_SLEEP), "the learner waits for it"
    assert await starts("waiting")
    assert await starts(STEPPING, SILENT_S + 1), "that learner is dead"
