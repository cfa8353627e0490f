"""Why a coordinator cannot go on, what it writes for views, the settings and prompts that a run keeps, and
the plans of its shards: on a real Redis."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import redis

from hora_rl.actors.coordinator.deployment import (
    FORGOTTEN_S,
    Coordinator,
    coordinate,
    long_gone,
    write_sample,
)
from hora_rl.actors.coordinator.shard import Plan, Round
from hora_rl.actors.coordinator.store import Plans, claim_identity, fingerprint
from hora_rl.common.config import Config, RewardConfig
from hora_rl.common.data.prompts import load_tokenizer, make_prompt
from hora_rl.common.data.rows import Row
from hora_rl.common.errors import RunError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import AsyncRedis, connect, connect_async
from hora_rl.common.live.state import changed
from hora_rl.common.live.telemetry import heartbeat_now
from hora_rl.common.load import load
from hora_rl.common.types import Phase, Prompt, Rollout
from hora_rl.deploy.machine.redis_server import RedisServer
from hora_rl.learner.records.step_records import Records
from tests.support.groups import group, rollout
from tests.support.simulated import prompts
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
        with pytest.raises(RuntimeError) if replaced else nullcontext():
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


RUN = Keys("r")
PROMPTS = prompts(5)


def configured(**settings: Any) -> Config:
    return load("tiny", ["run.name=r", *(f"{k.replace('__', '.')}={v}" for k, v in settings.items())])


async def start(server: RedisServer, config: Config, data: Sequence[Prompt]) -> None:
    async with connect_async(server.url) as client:
        await claim_identity(client, config, data)


async def begin(server: RedisServer) -> Any:
    """A run with a plan, and a client of its Redis."""
    await start(server, configured(), PROMPTS)
    client = connect(server.url)
    client.hset(RUN.plans, "0:0", "{}")
    return client


def stored(client: Any) -> Config:
    return Config.model_validate_json(client.get(RUN.config))


async def test_a_run_that_has_begun_refuses_other_settings_by_name(redis_server: RedisServer) -> None:
    client, own = await begin(redis_server), configured()
    changed = configured(run__seed=5, rollout__prompts_per_batch=8, generator__replicas=3)
    with pytest.raises(RunError) as refused:
        await start(redis_server, changed, PROMPTS)
    said = str(refused.value)
    assert f"rollout.prompts_per_batch: {own.rollout.prompts_per_batch} != 8; run.seed: 0 != 5" in said
    assert "generator.replicas" not in said
    assert stored(client) == own


async def test_a_run_that_has_begun_may_be_scaled_moved_and_prolonged(redis_server: RedisServer) -> None:
    client = await begin(redis_server)
    parts = {"generator__replicas": 3, "verifier__processes": 2, "coordinator__replicas": 2}
    places = {"queue__url": "redis://elsewhere:1", "telemetry__http_port": 0, "learner__workers": 2}
    changed = configured(**parts, **places, rollout__shards_in_flight=2, learner__steps=999)
    await start(redis_server, changed, PROMPTS)
    assert stored(client) == changed


async def test_before_its_first_plan_a_run_may_become_another(redis_server: RedisServer) -> None:
    await start(redis_server, configured(), PROMPTS)
    await start(redis_server, configured(run__seed=5), prompts(9))
    client = connect(redis_server.url)
    assert stored(client).run.seed == 5
    assert json.loads(client.hget(RUN.state, "prompts"))["n"] == 9


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(
    "change", [{"text": "another"}, {"answer": "2"}, {"tokens": np.array([3, 9], np.int32)}, None]
)
async def test_other_prompts_under_the_same_settings_are_refused(
    redis_server: RedisServer, change: dict[str, Any] | None, begun: bool
) -> None:
    client = await begin(redis_server)
    if not begun:  # coordinators of one application, on machines that hold different data
        client.delete(RUN.plans)
    await start(redis_server, configured(), PROMPTS)
    others = PROMPTS[:4] if change is None else [*PROMPTS[:3], replace(PROMPTS[3], **change), PROMPTS[4]]
    with pytest.raises(RunError, match=r"5 prompts .* (4|5) others"):
        await start(redis_server, configured(), others)
    assert json.loads(client.hget(RUN.state, "prompts"))["n"] == 5


async def test_settings_that_came_with_a_newer_version_are_no_change(redis_server: RedisServer) -> None:
    client = await begin(redis_server)
    older = json.loads(client.get(RUN.config))
    del older["rollout"]["attempts"], older["allocation"]["max_group_size"]
    client.set(RUN.config, json.dumps(older))
    await start(redis_server, configured(), PROMPTS)
    assert stored(client) == configured()


async def test_a_run_of_another_schema_is_refused_in_one_line(redis_server: RedisServer) -> None:
    client = await begin(redis_server)
    known = json.loads(client.hget(RUN.state, "prompts"))
    client.hset(RUN.state, "prompts", json.dumps({k: v for k, v in known.items() if k != "schema"}))
    with pytest.raises(RunError, match="run 'r'") as refused:
        await start(redis_server, configured(), PROMPTS)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("name", "same"), [("accuracy", True), ("code_tests", False), ("own:f", False)])
def test_other_tests_are_other_prompts_where_rewards_read_them(name: str, same: bool) -> None:
    tokenizer = load_tokenizer(load("tiny").model.path)
    reward, found = RewardConfig(weights={name: 1.0}), set[str]()
    for tests in (["1"], ["2"]):
        row = Row(0, "1+1=?", "2", {"answer": "2", "tests": tests})
        prompt = make_prompt(tokenizer, 0, row, load("tiny").data, reads_row=reward.reads_rows)
        found.add(fingerprint([prompt]))
    assert (len(found) == 1) is same


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
