"""Plans on a real Redis: the first of a shard counts, and a group's pre-rollouts are written once."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from hora_rl.actors.coordinator.plans import Plans
from hora_rl.actors.coordinator.shard import Plan, Round
from hora_rl.common.config import Config
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.queue import Consumer, Producer
from hora_rl.common.live.redis import connect, connect_async
from hora_rl.common.types import Group, Phase, Rollout
from hora_rl.common.wire import decode_group
from hora_rl.deploy.machine.redis_server import RedisServer
from tests.support.groups import group, rollout

CONFIG = Config.model_validate({"run": {"name": "p"}, "model": {"path": "m"}, "data": {"path": "arithmetic"}})
IDS = ["0:0", "0:1", "0:2"]


def sampled(phase: Phase, token: int) -> Rollout:
    return rollout([token] * 3, phase=phase, rewards={"accuracy": 1.0, "format": 0.5})


def plan_of(token: int) -> Plan:
    groups = tuple(group(i, [sampled("A", token)], run="p", prior=(1.0, 2.0), prompt=[1]) for i in range(3))
    return Plan(
        "uniform",
        ((1.0, 2.0),) * 3,
        (Round((1, 1, 1), (3, 3, 3), (token, 0, 1)),),
        {"format": 0.5, "accuracy": 1.0},
        groups,
    )


def run(redis_server: RedisServer, work: Any) -> Any:
    async def inside() -> Any:
        client = connect_async(redis_server.url)
        try:
            return await work(Plans(client, "p"), Producer(client, CONFIG))
        finally:
            await client.aclose()

    return asyncio.run(inside())


def same(one: Plan, other: Plan) -> bool:
    facts = [replace(p, groups=()) for p in (one, other)]
    tokens = [
        [(g.id, r.phase, r.tokens.tolist()) for g in p.groups for r in g.rollouts] for p in (one, other)
    ]
    fields = [[getattr(f, name) for name in Plan.__slots__] for f in facts]
    return fields[0] == fields[1] and tokens[0] == tokens[1]


def test_the_first_plan_of_a_shard_counts_and_nothing_is_left_of_another(redis_server: RedisServer) -> None:
    async def work(plans: Plans, producer: Producer) -> None:
        assert await plans.load("0:0", IDS) is None
        assert same(await plans.remember("0:0", plan_of(2)), plan_of(2))
        assert same(await plans.remember("0:0", plan_of(5)), plan_of(2))
        found = await plans.load("0:0", IDS)
        assert found is not None
        assert same(found, plan_of(2))

    run(redis_server, work)
    keys = sorted(k.decode() for k in connect(redis_server.url).scan_iter("*"))
    assert keys == sorted([Keys("p").plans, *(Keys("p").pre_rollouts(i) for i in IDS)])


def test_a_planned_group_is_whole_for_the_learner_and_closed_for_the_next_coordinator(
    redis_server: RedisServer,
) -> None:
    def grown(group: Group) -> Group:
        return replace(group, rollouts=(*group.rollouts, sampled("B", 7)))

    async def work(plans: Plans, producer: Producer) -> Plan | None:
        plan = await plans.remember("0:0", plan_of(2))
        for one in plan.groups[:2]:
            assert await producer.push(grown(one), planned=True)
        consumer = Consumer(connect(redis_server.url), CONFIG.run.name, CONFIG.queue)
        one, *_ = consumer.claim(1.0)
        found = decode_group(*consumer.read(one.id, one.group))
        assert [(r.phase, int(r.tokens[0])) for r in found.rollouts] == [("A", 2), ("B", 7)]
        consumer.acknowledge({one.id: one.group}, 1)
        return await plans.load("0:0", IDS)

    found = run(redis_server, work)
    assert (found.extra, [g.id for g in found.groups]) == ((2, 0, 1), ["0:2"])


@pytest.mark.parametrize("damaged", [None, b"\x00damaged"])
def test_a_group_whose_pre_rollouts_are_lost_is_asked_for_again(
    redis_server: RedisServer, damaged: bytes | None
) -> None:
    async def work(plans: Plans, producer: Producer) -> tuple[Plan | None, dict[str, int]]:
        await plans.remember("4:0", plan_of(2))
        client, key = connect(redis_server.url), Keys("p").pre_rollouts("0:1")
        client.delete(key) if damaged is None else client.set(key, damaged)
        return await plans.load("4:0", IDS), await producer.redo()

    plan, again = run(redis_server, work)
    assert [g.id for g in plan.groups] == ["0:0", "0:2"]
    assert plan.extra == (2, 0, 1), "the plan still says how much the group is due"
    assert again == {"0:1": 4}


def test_pre_rollouts_longer_than_the_limit_are_not_read_to_their_end(redis_server: RedisServer) -> None:
    async def work(plans: Plans, producer: Producer) -> Plan | None:
        await plans.remember("0:0", plan_of(2))
        client = connect_async(redis_server.url)
        try:
            return await Plans(client, "p", max_bytes=100).load("0:0", IDS)
        finally:
            await client.aclose()

    assert run(redis_server, work).groups == ()


def second_round(plan: Plan, token: int) -> Plan:
    """The plan with one more round; the first drew what it gave, each rollout of three times `token`."""
    drawn = [(replace(sampled("B", token), round=1),) * n for n in plan.extra]
    groups = tuple(
        replace(g, rollouts=(*g.rollouts, *more)) for g, more in zip(plan.groups, drawn, strict=True)
    )
    return replace(plan, rounds=(*plan.rounds, Round(plan.extra, (6, 0, 3), (0, 0, 3))), groups=groups)


def in_rounds(redis_server: RedisServer, work: Any) -> Any:
    async def inside() -> Any:
        client = connect_async(redis_server.url)
        try:
            return await work(Plans(client, "p", rounds=3))
        finally:
            await client.aclose()

    return asyncio.run(inside())


def test_the_first_plan_of_a_round_counts_with_the_rollouts_it_was_made_from(
    redis_server: RedisServer,
) -> None:
    async def work(plans: Plans) -> None:
        first = await plans.remember("0:0", plan_of(2))
        mine, other = second_round(first, 4), second_round(first, 9)
        assert same(await plans.remember("0:0", mine), mine)
        assert same(await plans.remember("0:0", other), mine)
        found = await plans.load("0:0", IDS)
        assert found is not None
        assert same(found, mine)
        assert [(r.round, int(r.tokens[0])) for r in found.groups[0].rollouts] == [(0, 2), (1, 4), (1, 4)]
        late = await plans.remember("0:0", plan_of(5))
        assert same(late, mine), "who is behind learns of the newest round"

    in_rounds(redis_server, work)
    keys = {k.decode() for k in connect(redis_server.url).scan_iter("*")}
    drawn = {Keys("p").drawn(i, 1) for i in ("0:0", "0:2")}
    assert keys == {Keys("p").plans} | {Keys("p").pre_rollouts(i) for i in IDS} | drawn
