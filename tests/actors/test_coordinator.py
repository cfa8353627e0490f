"""A coordinator that cannot go on says why where every view finds it, and what it writes for views."""

import asyncio
import json
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from hora_rl.actors.coordinator.deployment import Coordinator, coordinate
from hora_rl.actors.coordinator.history_writer import FORGOTTEN_S, long_gone, write_sample
from hora_rl.common.errors import RunError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect_async
from hora_rl.common.live.state import changed
from hora_rl.common.live.telemetry import heartbeat_now
from hora_rl.learner.records.step_records import Records
from tests.support.synthetic_run import SyntheticRun, config_of

KEYS = Keys("gives-up")


async def reason_after(url: str, error: Exception) -> bytes | None:
    """state.error after a coordination that ended with `error`."""

    async def stopped() -> None:
        raise error

    async with connect_async(url) as client:
        await client.delete(KEYS.state)
        await coordinate(stopped(), client, KEYS)
        reason: bytes | None = await client.hget(KEYS.state, "error")
        return reason


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RunError("a generator failed 20 times"), b"a generator failed 20 times"),
        (ValueError("rule: 'x' is none\nof these"), b"ValueError: rule: 'x' is none of these"),
        (ZeroDivisionError("in a user's rule"), b"ZeroDivisionError: in a user's rule"),
    ],
)
async def test_what_stops_a_coordinator_is_left_where_every_view_finds_it(redis_url, error, reason):
    assert await reason_after(redis_url, error) == reason


@pytest.mark.parametrize("error", [redis.exceptions.ConnectionError("away"), ConnectionResetError("away")])
async def test_a_coordinator_whose_redis_is_away_is_started_again(redis_url, error):
    with pytest.raises(type(error)):
        await reason_after(redis_url, error)


@pytest.mark.parametrize(
    ("gave_up", "reason", "replaced"), [(True, True, False), (True, False, True), (False, False, False)]
)
async def test_a_coordinator_that_gave_up_is_replaced_once_its_reason_was_taken_away(
    redis_url: str, gave_up: bool, reason: bool, replaced: bool
) -> None:
    work = asyncio.get_running_loop().create_future()
    work.set_result(gave_up)
    async with connect_async(redis_url) as client:
        await client.delete(KEYS.state)
        if reason:
            await client.hset(KEYS.state, "error", "away")
        replica: Any = SimpleNamespace(_work=work, _redis=client, _keys=KEYS, _name="coordinator/a")
        with pytest.raises(RuntimeError, match="asked to start again") if replaced else nullcontext():
            await Coordinator.check_health(replica)


def test_a_replica_that_is_long_gone_is_forgotten_and_a_learner_is_not() -> None:
    now = 10 * FORGOTTEN_S
    seen = {
        b"generator/new": now - 1,
        b"generator/old": now - FORGOTTEN_S - 1,
        b"environment/old": 0.0,
        b"verifier/silent": now - FORGOTTEN_S + 1,
        b"learner/0": 0.0,
        b"coordinator/old": 0.0,
    }
    parts = {name: json.dumps({"seen": at}).encode() for name, at in seen.items()}
    assert long_gone(parts, now) == [b"generator/old", b"environment/old"]


async def test_a_step_s_record_has_the_idle_share_of_generators(redis_url: str, tmp_path: Path) -> None:
    run = SyntheticRun(redis_url, config_of("looked-at"))
    records = Records(run.config, run.redis, tmp_path, 0)

    async def look(*running: int, paused: bool = False) -> None:
        run.redis.hset(run.keys.state, mapping=changed(paused=paused))
        for i, n in enumerate(running):
            heartbeat_now(run.redis, "looked-at", f"generator/{i}", {"running": n, "waiting": 0})
        run.redis.delete(f"{run.keys.history}:lock")

        async with connect_async(redis_url) as client:
            per_step = run.config.rollout.prompts_per_batch
            await write_sample(client, run.config.run.name, per_step, time.time())

    await look(0, 0)
    assert records.idle() == {}, "there was no step before"
    await look(3, 0)
    await look(1, 2)
    await look(0, 0, paused=True)
    assert records.idle() == {"generators/idle": 0.25}
    assert records.idle() == {}, "nobody has looked since"
    records.close()
