"""Plans on a real Redis: the first of a shard counts, and a group's pre-rollouts are written once."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from hora_rl.actors.coordinator.plans import Plans
from hora_rl.actors.coordinator.shard import Plan, Round
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import AsyncRedis, connect_async
from hora_rl.common.types import Phase, Rollout
from hora_rl.deploy.machine.redis_server import RedisServer
from tests.support.groups import group, rollout

IDS = ["0:0", "0:1", "0:2"]


def sampled(phase: Phase, token: int) -> Rollout:
    return rollout([token] * 3, phase=phase, rewards={"accuracy": 1.0, "format": 0.5})


def plan_of(token: int) -> Plan:
    groups = tuple(group(i, [sampled("A", token)], run="p", prior=(1.0, 2.0), prompt=[1]) for i in range(3))
    rounds = (Round((1, 1, 1), (token, 0, 1)),)
    return Plan("uniform", ((1.0, 2.0),) * 3, rounds, {"format": 0.5, "accuracy": 1.0}, groups)


@pytest.fixture
async def client(redis_server: RedisServer) -> AsyncIterator[AsyncRedis]:
    async with connect_async(redis_server.url) as found:
        yield found


async def keys_of(client: AsyncRedis) -> set[str]:
    return {key.decode() async for key in client.scan_iter("*")}


def same(one: Plan | None, other: Plan) -> bool:
    both = one, other
    tokens = [[(g.id, r.phase, r.tokens.tolist()) for g in p.groups for r in g.rollouts] for p in both]
    facts = [(p.rule, p.priors, p.rounds, p.rewards) for p in both]
    return facts[0] == facts[1] and tokens[0] == tokens[1]


async def test_pre_rollouts_longer_than_the_limit_are_not_read_to_their_end(client: AsyncRedis) -> None:
    await Plans(client, "p").remember("0:0", IDS, plan_of(2))
    assert (await Plans(client, "p", max_bytes=100).load("0:0", IDS)).groups == ()


def second_round(plan: Plan, token: int) -> Plan:
    """The plan with one more round; the first drew what it gave, each rollout of three times `token`."""
    drawn = [(replace(sampled("B", token), round=1),) * n for n in plan.extra]
    pairs = zip(plan.groups, drawn, strict=True)
    groups = tuple(replace(g, rollouts=(*g.rollouts, *more)) for g, more in pairs)
    return replace(plan, rounds=(*plan.rounds, Round(plan.extra, (0, 0, 3))), groups=groups)


async def test_the_first_plan_of_a_round_counts_with_its_own_rollouts(client: AsyncRedis) -> None:
    plans = Plans(client, "p", rounds=3)
    assert await plans.load("0:0", IDS) is None
    first = await plans.remember("0:0", IDS, plan_of(2))
    assert same(await plans.remember("0:0", IDS, plan_of(5)), plan_of(2))
    assert await keys_of(client) == {Keys("p").plans, *(Keys("p").pre_rollouts(i) for i in IDS)}
    mine, other = second_round(first, 4), second_round(first, 9)
    assert same(await plans.remember("0:0", IDS, mine), mine)
    assert same(await plans.remember("0:0", IDS, other), mine)
    found = await plans.load("0:0", IDS)
    assert same(found, mine)
    assert [(r.round, int(r.tokens[0])) for r in found.groups[0].rollouts] == [(0, 2), (1, 4), (1, 4)]
    assert same(await plans.remember("0:0", IDS, plan_of(5)), mine), "who is behind learns of the newest"
    drawn = {Keys("p").drawn(i, 1) for i in ("0:0", "0:2")}
    assert await keys_of(client) == {Keys("p").plans} | {Keys("p").pre_rollouts(i) for i in IDS} | drawn
    await client.delete(Keys("p").pre_rollouts("0:1"))
    left = await plans.load("0:0", IDS)
    assert [len(g.rollouts) for g in left.groups] == [3, 2]
    assert same(await plans.remember("0:0", IDS, left), left), "a lost group moves no other's rollouts"
