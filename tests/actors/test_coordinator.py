"""A coordinator that cannot go on says why, where every view finds it, instead of being started again for
ever."""

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from hora_rl.actors.coordinator.deployment import Coordinator, coordinate
from hora_rl.common.errors import RunError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect_async

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
