"""The queue on a real Redis: nothing lost, nothing doubled, also when Redis itself is killed."""

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Any

import pytest

from hora_rl.actors.coordinator.store import Leases
from hora_rl.common.errors import WireError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.queue import Consumer, Ledger, Producer, Row
from hora_rl.common.live.redis import connect, connect_async
from hora_rl.common.weights.announcement import Manifest, advance, announce, newest_now
from hora_rl.common.wire import decode_group
from hora_rl.deploy.machine.redis_server import RedisServer
from tests.support.groups import group, rollouts_held


def run(redis_server: RedisServer, work: Any) -> Any:
    async def inside() -> Any:
        client = connect_async(redis_server.url)
        try:
            result: Coroutine[Any, Any, Any] = work(client, Producer(client, "q", 4))
            return await result
        finally:
            await client.aclose()

    return asyncio.run(inside())


def push(redis_server: RedisServer, *indices: int) -> list[bool]:
    async def work(client: Any, producer: Producer) -> list[bool]:
        return [await producer.push(group(i, run="q")) for i in indices]

    return run(redis_server, work)


def depth(redis_server: RedisServer) -> int:
    return run(redis_server, lambda client, producer: producer.depth())


def messages(redis_server: RedisServer) -> set[str]:
    return rollouts_held(connect(redis_server.url), "q")


def consumer_of(redis_server: RedisServer) -> Consumer:
    return Consumer(connect(redis_server.url), "q")


def rows(entries: list[Any]) -> list[Row]:
    return [Row(e.group, e.id, e.batch, 1) for e in entries]


def test_pushing_a_group_again_adds_nothing(redis_server: RedisServer) -> None:
    assert push(redis_server, 1, 2) == [True, True]
    before = messages(redis_server)
    assert len(before) == 4
    assert push(redis_server, 1) == [False]
    assert depth(redis_server) == 2
    assert messages(redis_server) == before


def test_a_push_removes_what_earlier_rounds_drew_also_when_it_comes_second(redis_server: RedisServer) -> None:
    keys = Keys("q")

    async def work(client: Any, _: Producer) -> list[bool]:
        pushed = []
        for _ in range(2):
            for number in (1, 2):
                await client.set(keys.drawn("0:7", number), b"drawn")
            pushed.append(await Producer(client, "q", 4, rounds=3).push(group(7, run="q")))
            assert not await client.exists(keys.drawn("0:7", 1), keys.drawn("0:7", 2))
        return pushed

    assert run(redis_server, work) == [True, False]


def test_depth_counts_what_no_step_has_taken_and_a_trained_group_is_not_pushed_again(
    redis_server: RedisServer,
) -> None:
    push(redis_server, *range(6))
    consumer, ledger = consumer_of(redis_server), Ledger(connect(redis_server.url), "q")
    entries = consumer.claim(1.0)
    assert depth(redis_server) == 6, "claiming is not taking"
    ledger.record(0, rows(entries[:4]))
    assert depth(redis_server) == 2, "taken, though nothing was let go yet"
    consumer.acknowledge({e.id: e.group for e in entries[:4]}, 1)
    assert push(redis_server, 1) == [False]
    assert depth(redis_server) == 2
    assert len(messages(redis_server)) == 4, "of the two groups that are left"


def test_a_restarted_learner_finds_all_it_had_claimed_and_not_let_go(redis_server: RedisServer) -> None:
    push(redis_server, *range(5))
    consumer = consumer_of(redis_server)
    entries = consumer.claim(1.0)
    consumer.acknowledge({entries[0].id: entries[0].group}, 0)
    again = consumer_of(redis_server)
    assert [e.group for e in again.pending()] == [e.group for e in entries[1:]]
    assert again.claim(0.01) == []
    kept = decode_group(*again.read(entries[1].id, entries[1].group))
    assert (kept.id, kept.size) == (entries[1].group, 2)
    with pytest.raises(WireError, match=r"pre_rollouts|additional"):
        again.read(entries[0].id, entries[0].group)
    short = Consumer(connect(redis_server.url), "q", max_bytes=10).read(entries[1].id, entries[1].group)
    assert [len(message) for message in short] == [11, 11], "one above the limit is not read to its end"


def test_an_unusable_message_is_set_aside_and_asked_for_again(redis_server: RedisServer) -> None:
    def again() -> dict[str, int]:
        return run(redis_server, lambda _, producer: producer.redo())

    push(redis_server, 1, 2)
    client = connect(redis_server.url)
    consumer = consumer_of(redis_server)
    bad = consumer.claim(1.0)[0]
    held = consumer.read(bad.id, bad.group)
    consumer.dead_letter(bad, "the reason")
    [(_, dead)] = client.xrange(Keys("q").dead)
    assert (dead[b"pre_rollouts"], dead[b"additional"]) == held
    assert f"additional:{bad.id}" not in messages(redis_server)
    assert f"pre_rollouts:{bad.group}" in messages(redis_server), "its shard may have to go on from them"
    assert dead[b"reason"] == b"the reason"
    assert client.hget(Keys("q").counters, "dead_letters") == b"1"
    assert again() == {bad.group: bad.batch}
    assert push(redis_server, 1) == [True], "its id is free again"
    assert again() == {}
    consumer.dead_letter(bad, "said again, for the first answer was lost")
    assert again() == {}
    assert push(redis_server, 1) == [False], "the second entry is the group's now"
    assert client.hget(Keys("q").counters, "dead_letters") == b"1"
    assert len(consumer.pending()) == 1


def test_foreign_entries_are_removed_counted_and_take_nothing_from_groups(redis_server: RedisServer) -> None:
    """The first was claimed by a learner that was killed."""
    client, keys, consumer = connect(redis_server.url), Keys("q"), consumer_of(redis_server)
    client.xadd(keys.groups, {"id": "0:1", "batch": "0"})
    client.xreadgroup("learner", "rank-0", {keys.groups: ">"})
    assert consumer.claimed() == 1
    assert consumer.pending() == []
    assert consumer.claimed() == client.xlen(keys.groups) == 0
    push(redis_server, 1)
    long = {"id": b"0:1" * 2**20, "batch": b"1" * 5000}
    for fields in ({"hello": "world"}, {"id": "0:1", "batch": "0"}, long):
        client.xadd(keys.groups, fields)
    [mine] = consumer.claim(1.0)
    assert [e.id for e in consumer.pending()] == [mine.id]
    assert decode_group(*consumer.read(mine.id, mine.group)).id == "0:1"
    assert push(redis_server, 1) == [False]
    assert (client.hlen(keys.redo), client.xlen(keys.groups)) == (0, 1)
    assert client.hget(keys.counters, "dead_letters") == b"4"
    assert all(sum(map(len, dead.values())) < 1000 for _, dead in client.xrange(keys.dead))


def test_the_ledger_never_changes(redis_server: RedisServer) -> None:
    ledger = Ledger(connect(redis_server.url), "q")
    first, other = [Row("0:1", "1-0", 0, 9)], [Row("0:2", "2-0", 0, 9)]
    ledger.record(0, first)
    ledger.record(0, first)
    with pytest.raises(ValueError, match="step 0"):
        ledger.record(0, other)
    assert ledger.steps() == {0: first}
    assert ledger.step(1) is None


def test_nothing_that_was_acknowledged_is_lost_when_redis_is_killed(redis_server: RedisServer) -> None:
    async def work(client: Any, producer: Producer) -> int:
        done = 0
        for i in range(300):
            if i == 150:
                os.kill(redis_server.pid, signal.SIGKILL)  # it is started again by itself
            done += await producer.push(group(i, run="q"))
        return done

    assert run(redis_server, work) == 300
    assert depth(redis_server) == 300
    entries = consumer_of(redis_server).claim(1.0, count=1000)
    assert sorted(int(e.group.split(":")[1]) for e in entries) == list(range(300))


def test_a_lease_is_held_by_one_and_passes_on_when_its_owner_is_silent(redis_server: RedisServer) -> None:
    async def work(client: Any, producer: Producer) -> None:
        one, two = Leases(client, "q", "one", 0.6), Leases(client, "q", "two", 0.6)
        assert await one.acquire("0:0")
        assert not await two.acquire("0:0")
        async with one.held("0:0"):
            await asyncio.sleep(1.0)
            assert not await two.acquire("0:0"), "it is renewed while it is used"
        assert await two.acquire("0:0")
        await asyncio.sleep(0.8)
        assert await one.acquire("0:0"), "a silent owner loses it"
        await two.release("0:0")
        assert not await two.acquire("0:0"), "releasing another's lease does nothing"

    run(redis_server, work)


def test_a_published_version_never_falls(redis_server: RedisServer) -> None:
    client = connect(redis_server.url)
    assert [advance(client, "q", v) for v in (0, 3, 2, 4)] == [0, 3, 3, 4]
    manifest = Manifest("q", 4, "/x", "abc", 12)
    announce(client, manifest)
    assert newest_now(client, "q") == manifest
