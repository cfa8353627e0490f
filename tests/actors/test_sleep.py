"""When a generator that shares its card sleeps, what wakes it, and when a new one may start. Timers are in
place of vLLM, and Redis is real."""

import asyncio
import time
from typing import Any

import pytest

from hora_rl.actors.generator import sleep
from hora_rl.actors.generator.held_weights import HeldWeights, Installed
from hora_rl.actors.generator.sleep import DEAD_S, is_left, keep_watch, wait_for_card
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect, connect_async
from hora_rl.common.live.telemetry import HEARTBEAT_S, LEADER, SILENT_S, STEPPING, TO_SLEEP, heartbeat_now
from hora_rl.common.load import load

GROUP: tuple[dict[str, Any], tuple[str, ...], str] = (
    {"rank_offset": 1, "join_s": 5.0},
    ("generator/a",),
    "g",
)


class Engine:
    """Notes what it is asked. It sleeps after `takes` seconds, or raises `trouble`."""

    def __init__(self) -> None:
        self.did, self.takes = list[str](), 0.0
        self.trouble: Exception | None = None

    async def init_transfer(self, info: Any) -> None: ...

    async def receive(self, info: Any) -> None: ...

    async def install(self, version: int) -> Installed:
        self.did.append(f"install {version}")
        return Installed(0.0, "", 0.0)

    async def sleep(self) -> None:
        await asyncio.sleep(self.takes)
        if self.trouble is not None:
            raise self.trouble
        self.did.append("sleep")

    async def wake(self) -> None:
        self.did.append("wake")


async def held(redis: Any = None) -> tuple[HeldWeights, Engine]:
    config, engine = load("tiny", ["weights.transport=gloo", "weights.update_limit_s=1"]), Engine()
    weights = HeldWeights(config, engine, redis, "generator/a")
    await weights.join(*GROUP)
    await weights.update({}, 4, "g")
    return weights, engine


def test_an_update_that_is_late_does_not_wake_the_engine_and_the_next_version_does() -> None:
    async def scenario() -> None:
        weights, engine = await held()
        await weights.sleep(4)
        assert weights.state()["state"] == "asleep"
        await weights.update({}, 3, "g")
        assert engine.did == ["install 4", "sleep"]
        await weights.update({}, 5, "g")
        assert engine.did == ["install 4", "sleep", "install 5"]
        assert (weights.state()["state"], weights.asleep_since) == ("serving", None)

    asyncio.run(scenario())


def test_an_engine_falls_asleep_at_the_version_of_the_step_and_not_before() -> None:
    async def scenario() -> None:
        weights, engine = await held()
        sleeping = asyncio.create_task(weights.sleep(5))
        await asyncio.sleep(0.1)
        assert engine.did == ["install 4"]
        await weights.update({}, 5, "g")
        await sleeping
        assert engine.did == ["install 4", "install 5", "sleep"]

    asyncio.run(scenario())


@pytest.mark.parametrize("trouble", [RuntimeError("Memory usage increased after sleeping."), None])
def test_an_engine_that_does_not_fall_asleep_is_unhealthy(trouble: Exception | None) -> None:
    async def scenario() -> None:
        weights, engine = await held()
        engine.trouble, engine.takes = trouble, 0.0 if trouble else 30.0
        with pytest.raises((RuntimeError, TimeoutError)):
            await weights.sleep(4)
        assert weights.state()["state"] == "failed"
        assert weights.asleep_since is None

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("state", "age", "left"),
    [
        (STEPPING, 0.0, False),
        (STEPPING, SILENT_S + 1, False),
        (STEPPING, DEAD_S + 1, True),
        (TO_SLEEP, 0.0, False),
        ("waiting", 0.0, True),
        ("starting", 0.0, True),
        ("waiting", DEAD_S - 1, False),
    ],
)
def test_who_is_left_asleep(state: str, age: float, left: bool) -> None:
    """Asleep for almost `DEAD_S`, or long before the newest heartbeat."""
    now = 1e6
    since = now - 2 * DEAD_S if state == STEPPING or not age else now - DEAD_S + 1
    assert is_left({"state": state, "seen": now - age}, since, now) == left


def test_a_heartbeat_from_before_it_slept_wakes_no_engine() -> None:
    now = 1e6
    assert not is_left({"state": "waiting", "seen": now - 0.2}, now - 0.1, now)
    assert not is_left({"state": "waiting", "seen": now}, now - HEARTBEAT_S / 2, now)
    assert not is_left({}, now - 1, now)
    assert is_left({}, now - DEAD_S - 1, now)


def test_it_wakes_by_itself_when_the_learner_waits_and_not_while_it_steps(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sleep, "POLL_S", 0.02)
    monkeypatch.setattr(sleep, "HEARTBEAT_S", 0.05)
    client = connect(redis_url)

    async def scenario() -> None:
        redis = connect_async(redis_url)
        weights, engine = await held(redis)
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

    asyncio.run(scenario())


def test_one_that_was_put_to_sleep_again_meanwhile_sleeps_on() -> None:
    async def scenario() -> None:
        weights, engine = await held()
        await weights.sleep(4)
        first = weights.asleep_since
        assert first is not None
        await asyncio.sleep(0.01)
        await weights.sleep(4)
        await weights.wake(first)
        assert "wake" not in engine.did

    asyncio.run(scenario())


def test_a_replica_starts_only_outside_of_a_step(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
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

    assert asyncio.run(starts(None)), "there is no learner yet"
    assert not asyncio.run(starts(STEPPING))
    assert asyncio.run(starts(TO_SLEEP)), "the learner waits for it"
    assert asyncio.run(starts("waiting"))
    assert asyncio.run(starts(STEPPING, SILENT_S + 1)), "that learner is dead"
