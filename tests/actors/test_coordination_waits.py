"""When a coordinator waits, gives up or samples again, on a real Redis."""

import asyncio
import json
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from hora_rl.actors.coordinator.scheduler import Coordination
from hora_rl.allocator import allocate
from hora_rl.common.data.prompt_order import Mixture, mixed_rows
from hora_rl.common.errors import RunError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.types import Completion, Prompt, SamplingRequest, Scored
from tests.support.coordination import (
    GROUP,
    PROMPTS,
    begun,
    config_of,
    fleet_of,
    killed,
    payloads_of,
    to_the_end,
    trained,
    until,
)
from tests.support.held import rollouts_held
from tests.support.simulated import Fleet, coordinate, prompts, score


async def test_a_full_queue_pauses_the_coordinator_after_the_shard_in_hand(redis_url: str) -> None:
    config = config_of("full", staleness=4, steps=5, **{"rollout.shards_in_flight": 1, "queue.capacity": 30})
    keys, client = Keys("full"), connect(redis_url)
    work = begun(config, redis_url)
    await until(lambda: client.xlen(keys.groups) >= 30)
    await asyncio.sleep(0.5)
    assert client.xlen(keys.groups) == 30
    learner = await trained(config, redis_url, work)
    assert sorted(learner.trained) == list(range(5))


async def test_a_paused_run_finishes_what_it_has_begun_and_goes_on_when_resumed(redis_url: str) -> None:
    config = config_of("paused", staleness=1, steps=3)
    keys, client = Keys("paused"), connect(redis_url)
    client.hset(keys.state, "paused", "1")
    work = begun(config, redis_url)
    await asyncio.sleep(0.5)
    assert client.xlen(keys.groups) == 0
    client.hset(keys.state, "paused", "0")
    await trained(config, redis_url, work)
    assert client.hlen(keys.shards) == 9


@pytest.mark.parametrize("in_flight", [1, 4])
@pytest.mark.parametrize("part", ["generators", "verifiers"])
async def test_a_coordinator_names_the_requests_that_hold_it_up_and_not_the_learner(
    redis_url: str, part: str, in_flight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(f"held-{part}-{in_flight}", staleness=1, **{"rollout.shards_in_flight": in_flight})
    keys, client, made = Keys(config.run.name), connect(redis_url), list[Coordination]()
    run = Coordination.run
    monkeypatch.setattr(Coordination, "run", lambda self: (made.append(self), run(self))[1])
    first = {row for _, row in mixed_rows(0, PROMPTS, Mixture((17,)), config.run.seed)[: PROMPTS // 3]}

    async def slow_score(prompt: Prompt, completions: Sequence[Completion]) -> list[Scored]:
        await asyncio.sleep(60.0 if part == "verifiers" and prompt.index in first else 0.0)
        return await score(prompt, completions)

    monkeypatch.setattr("tests.support.simulated.score", slow_score)
    fleet = Fleet(lambda request, _: 60.0 if part == "generators" and request.priority == 0 else 0.0)
    client.hset(keys.state, "paused", "1")

    work = begun(config, redis_url, fleet)
    await until(lambda: made and made[0].waiting_for == "an operator: the run is paused")
    client.hset(keys.state, "paused", "0")
    await until(lambda: client.hlen(keys.shards) >= (5 if in_flight > 1 else 0))  # all but the first
    held = {"generators": 0, "verifiers": 0, part: PROMPTS // 3}
    asked = f"requests: {held['generators']} at generators, {held['verifiers']} at verifiers"
    await until(lambda: made[0].waiting_for == asked)
    await asyncio.sleep(0.2)
    assert made[0].waiting_for.startswith("requests: ")
    await killed(work)
    assert made[0].waiting_for == "requests: 0 at generators, 0 at verifiers"


AS_IF = {"allocation.rule": "uniform", "learner.objective.group_weight": "{as_if: hit_utility}"}
ROUNDS_3 = {"allocation.rounds": "3"}


@pytest.mark.parametrize(
    "more", [{}, AS_IF, ROUNDS_3], ids=["hit_utility", "uniform as if hit_utility", "3 rounds"]
)
@pytest.mark.parametrize("part", ["pre_rollouts", "additional"])
async def test_a_group_the_learner_cannot_use_is_sampled_again_at_the_size_its_plan_gave_it(
    redis_url: str, part: str, more: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(f"redo-{part}-{'-'.join(more)}", staleness=1, steps=2, **more)
    keys, client = Keys(config.run.name), connect(redis_url)
    payloads = payloads_of(monkeypatch)
    work = begun(config, redis_url)
    await until(lambda: client.hlen(keys.shards) >= 3)  # the first batch; nobody has claimed a group yet
    entry, fields = client.xrange(keys.groups, count=1)[0]
    group_id = fields[b"id"].decode()
    damaged = keys.additional(entry.decode()) if part == "additional" else keys.pre_rollouts(group_id)
    client.set(damaged, b"\x00damaged")
    learner = await trained(config, redis_url, work)
    reports = [g for ids in learner.trained.values() for g in ids]
    assert group_id in reports
    assert len(set(reports)) == len(reports) == 2 * PROMPTS
    first = [json.loads(text) for text in client.hvals(keys.shards)]
    report = next(r for r in first if group_id in r["groups"])
    row = report["groups"].index(group_id)
    assert payloads[group_id].extra == report["extra"][row]
    due = [r["extra"][row] for r in report["rounds"]]
    assert payloads[group_id].rounds == tuple(due[: max(i for i, n in enumerate([1, *due]) if n)])
    assert sum(g.size for g in payloads.values()) == 2 * PROMPTS * GROUP
    for r in first:
        as_if = 2 + allocate(r["successes"], 2, len(r["groups"]) * (GROUP - 2))
        wanted = as_if.tolist() if more is AS_IF else [0] * len(r["groups"])
        found = [payloads[g].size_as_if for g in r["groups"] if g in payloads]
        assert found == [w for g, w in zip(r["groups"], wanted, strict=True) if g in payloads]
    assert client.xlen(keys.dead) == 1
    assert client.hlen(keys.redo) == 0
    assert rollouts_held(client, config.run.name) == set()


async def test_pre_rollouts_lost_with_their_coordinator_are_drawn_again_at_the_plans_size(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of("lost", staleness=1, steps=2)
    keys, client, payloads = Keys("lost"), connect(redis_url), payloads_of(monkeypatch)
    client.hset(keys.state, "error", "what the one before gave up for")
    # Its Phase B lasts longer than a look at the plans.
    first = begun(config, redis_url, fleet_of(random.Random(0), 0.4))
    planned = await until(lambda: set(client.hkeys(keys.plans)) - set(client.hkeys(keys.shards)))
    await killed(first)
    shard = sorted(planned)[0]
    unpushed = [
        k
        for k in client.scan_iter(keys.pre_rollouts("*"))
        if not client.hexists(keys.pushed, k.decode().removeprefix(keys.pre_rollouts("")))
    ]
    assert unpushed, shard
    client.set(unpushed[0], b"\x00damaged")
    second = begun(config, redis_url, fleet_of(random.Random(0), 0.05), "two")
    learner = await trained(config, redis_url, second)
    assert sum(len(ids) for ids in learner.trained.values()) == 2 * PROMPTS
    assert sum(g.size for g in payloads.values()) == 2 * PROMPTS * GROUP
    assert client.hlen(keys.redo) == client.xlen(keys.dead) == 0
    assert rollouts_held(client, config.run.name) == set()


async def test_a_coordinator_with_other_data_gives_up_before_it_asks_for_anything(redis_url: str) -> None:
    config = config_of("other-data", staleness=1, steps=2)
    first = begun(config, redis_url)
    await until(lambda: connect(redis_url).exists(Keys("other-data").plans))
    other = fleet_of(random.Random(0), 0.001)
    with pytest.raises(RunError, match="begun with 17 prompts"):
        await coordinate(config, redis_url, prompts(16), other, "two")
    changed = config_of("other-data", staleness=1, steps=2, **{"rollout.temperature": 0.5})
    with pytest.raises(RunError, match=r"rollout\.temperature: 1\.0 != 0\.5"):
        await coordinate(changed, redis_url, prompts(17), other, "two")
    assert other.requests == 0
    await trained(config, redis_url, first)


async def test_requests_are_numbered_by_their_shards_place_in_the_run_so_that_the_oldest_come_first(
    redis_url: str,
) -> None:
    config, seen = config_of("order", staleness=1, steps=2), set()
    fleet = Fleet(fault=lambda request: seen.add((request.prompt.index, request.priority)))
    await to_the_end(config, redis_url, fleet)
    rows = [row for b in (0, 1) for _, row in mixed_rows(b, PROMPTS, Mixture((17,)), config.run.seed)]
    per_shard = PROMPTS // config.rollout.shards
    assert seen == {(row, place // per_shard) for place, row in enumerate(rows)}


class Together(Fleet):
    """Answers no request of a shard before `expected` of them are there."""

    def __init__(self, expected: int) -> None:
        super().__init__()
        self.expected, self.asked = expected, Counter[int]()
        self.all_there = defaultdict[int, Any](asyncio.Event)

    async def __call__(self, request: SamplingRequest, version: int) -> list[Completion]:
        self.asked[request.priority] += 1
        if self.asked[request.priority] == self.expected:
            self.all_there[request.priority].set()
        await self.all_there[request.priority].wait()
        return await super().__call__(request, version)


@pytest.mark.parametrize(
    ("name", "more"),
    [("rule", {"allocation.rule": "uniform"}), ("gate", {"allocation.warmup.enabled": "true"})],
)
async def test_a_shard_whose_allocation_needs_no_counts_asks_for_everything_at_once(
    redis_url: str, name: str, more: dict[str, str]
) -> None:
    config = config_of(f"at-once-{name}", staleness=0, steps=2, **more)
    fleet = Together(expected=2 * PROMPTS // 3)  # two rollouts and three rollouts of each prompt
    await to_the_end(config, redis_url, fleet)
    assert set(fleet.asked.values()) == {4}, "and for nothing twice"
    for report in map(json.loads, connect(redis_url).hvals(Keys(config.run.name).shards)):
        assert report["extra"] == [GROUP - 2] * 2
        kinds = [index % 3 for index in report["prompts"]]
        assert report["successes"] == [{0: 2, 1: 1, 2: 0}[kind] for kind in kinds], "of the first two alone"
