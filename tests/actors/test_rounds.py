"""Phase B in rounds on a real Redis: what a coordinator leaves behind in the middle of a round is what the
next one continues."""

import asyncio
import json
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hora_rl.common.config import Config
from hora_rl.common.errors import ConfigError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.load import load
from hora_rl.common.types import Completion, SamplingRequest
from hora_rl.deploy.monitor.reading import read_run
from hora_rl.evaluation.audit import audit, gather
from hora_rl.evaluation.audit_divisions import divisions as divided
from tests.support.held import rollouts_held
from tests.support.simulated import RATES, Fleet, Learner, coordinate, prompts, score_by_chance

GAMMA, G, G0, SHARDS, STEPS = 6, 10, 2, 2, 3


def config_of(name: str, **more: Any) -> Config:
    settings = {
        "run.name": name,
        "rollout.prompts_per_batch": GAMMA,
        "rollout.group_size": G,
        "rollout.pre_rollouts": G0,
        "rollout.shards": SHARDS,
        "rollout.samples_per_request": 3,
        "rollout.max_staleness": 0,
        "allocation.rounds": 4,
        "allocation.stop": "hit",
        "allocation.warmup.enabled": "false",
        "learner.steps": STEPS,
        "coordinator.lease_s": 0.3,
        **more,
    }
    return load("tiny", [f"{k}={v}" for k, v in settings.items()])


def fleet_of(seconds: float, asked: list[tuple[int, int, int]] | None = None) -> Fleet:
    """Notes (prompt, size, seed) of each request when it is answered."""

    def note(request: SamplingRequest) -> None:
        if asked is not None:
            asked.append((request.prompt.index, request.n, request.seed))

    return Fleet(
        seconds_of=lambda request, _: seconds * random.random(),
        lengths_of=lambda n: np.full(n, 2),
        fault=note,
    )


async def to_the_end(config: Config, redis_url: str, fleet: Fleet, owner: str = "one") -> None:
    async with asyncio.timeout(40):
        work = asyncio.create_task(coordinate(config, redis_url, prompts(17), fleet, owner, score_by_chance))
        await asyncio.to_thread(Learner(config, redis_url, lambda: 0.0).run)
        await work


def reports(redis_url: str, config: Config) -> dict[tuple[int, int], dict[str, Any]]:
    found = map(json.loads, connect(redis_url).hvals(Keys(config.run.name).shards))
    return {(r["batch"], r["shard"]): r for r in found}


def divisions(redis_url: str, config: Config) -> dict[tuple[int, int], Any]:
    return {place: r["rounds"] for place, r in reports(redis_url, config).items()}


def newest_round(redis_url: str, config: Config, shard: str) -> int:
    plans = connect(redis_url).hkeys(Keys(config.run.name).plans)
    return max([1, *(number for number in range(2, 5) if f"{shard}:{number}".encode() in plans)])


async def killed_in_round(config: Config, redis_url: str, fleet: Fleet, number: int) -> str:
    """Kill a coordinator when a shard has the plan of round `number` and none of the next; the shard's
    name."""
    keys, client = Keys(config.run.name), connect(redis_url)

    def planned() -> str | None:
        open_ = {f.decode() for f in client.hkeys(keys.plans) if f.count(b":") == 1}
        open_ -= {f.decode() for f in client.hkeys(keys.shards)}
        return next((n for n in sorted(open_) if newest_round(redis_url, config, n) == number), None)

    work = asyncio.create_task(coordinate(config, redis_url, prompts(17), fleet, "one", score_by_chance))
    async with asyncio.timeout(20):
        while (shard := planned()) is None:
            await asyncio.sleep(0.001)
    while not work.done():  # redis-py can swallow a cancellation
        work.cancel()
        await asyncio.wait([work], timeout=0.05)
    return shard


def test_a_run_repeated_divides_as_before(redis_url: str) -> None:
    first, second = config_of("once"), config_of("twice")
    for config in (first, second):
        asyncio.run(to_the_end(config, redis_url, fleet_of(0.01)))
    assert divisions(redis_url, first) == divisions(redis_url, second)
    assert len({str(r) for r in divisions(redis_url, first).values()}) > 1


def test_views_count_all_rounds_under_the_successes_of_phase_a(redis_url: str) -> None:
    config = config_of("views")
    asyncio.run(to_the_end(config, redis_url, fleet_of(0.0)))
    phase_a, phase_b = Counter[int](), Counter[int]()
    for report in reports(redis_url, config).values():
        for c, *extra in zip(report["successes"], *(r["extra"] for r in report["rounds"]), strict=True):
            phase_a[c] += 1
            phase_b[c] += sum(extra)
    state = read_run(connect(redis_url), "views")
    assert {c: n for c, n in state.phase_a.items() if n} == phase_a
    assert {c: n for c, n in state.phase_b.items() if n} == +phase_b
    assert sum(phase_b.values()) == STEPS * GAMMA * (G - G0)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_coordinator_killed_in_a_round_leaves_all_that_the_next_one_needs(
    redis_url: str, number: int
) -> None:
    whole, broken = config_of(f"whole-{number}"), config_of(f"broken-{number}")
    asyncio.run(to_the_end(whole, redis_url, fleet_of(0.0)))
    before, after = list[tuple[int, int, int]](), list[tuple[int, int, int]]()
    shard = asyncio.run(killed_in_round(broken, redis_url, fleet_of(0.05, before), number))
    number, pushed = (
        newest_round(redis_url, broken, shard),
        connect(redis_url).hkeys(Keys(broken.run.name).pushed),
    )
    asyncio.run(to_the_end(broken, redis_url, fleet_of(0.0, after), "two"))
    assert divisions(redis_url, broken) == divisions(redis_url, whole)
    batch, index = map(int, shard.split(":"))
    own = set(reports(redis_url, broken)[batch, index]["prompts"])
    rounds = divisions(redis_url, broken)[batch, index]
    asked_again = sum(n for prompt, n, _ in after if prompt in own and batch == 0)
    groups = reports(redis_url, broken)[batch, index]["groups"]
    left = sum(
        extra
        for r in rounds[number - 1 :]
        for group, extra in zip(groups, r["extra"], strict=True)
        if group.encode() not in pushed
    )
    met_again = sum(
        G0 + extra
        for (b, _), r in reports(redis_url, broken).items()
        for prompt, extra in zip(r["prompts"], r["extra"], strict=True)
        if b > 0 and prompt in own
    )
    assert asked_again == left + met_again, "of that shard, this round and those after it alone"
    assert rollouts_held(connect(redis_url), broken.run.name) == set()


def test_a_round_lost_with_its_coordinator_costs_its_group_alone(redis_url: str) -> None:
    config = config_of("lost")
    keys, client = Keys("lost"), connect(redis_url)
    asyncio.run(killed_in_round(config, redis_url, fleet_of(0.05), 3))
    drawn = list(client.scan_iter("hora:\\{lost\\}:drawn:*"))
    assert drawn, "what rounds 1 and 2 drew is stored"
    client.set(drawn[0], b"\x00damaged")
    asyncio.run(to_the_end(config, redis_url, fleet_of(0.0), "two"))
    assert all(sum(r["extra"]) == GAMMA // SHARDS * (G - G0) for r in reports(redis_url, config).values())
    assert client.hlen(keys.redo) == client.xlen(keys.dead) == 0
    assert rollouts_held(client, "lost") == set()
    assert audit(config, gather(client, "lost", list)) == [
        f"step {step} is in a checkpoint and not in the records" for step in range(STEPS)
    ]


def test_while_the_gate_is_shut_a_shard_has_one_round(redis_url: str) -> None:
    config = config_of("shut", **{"allocation.warmup.enabled": "true", "allocation.warmup.cycles": 2})
    asyncio.run(to_the_end(config, redis_url, fleet_of(0.0)))
    rounds = {place: (r["rule"], len(r["rounds"])) for place, r in reports(redis_url, config).items()}
    assert {rounds[b, s] for b in (0, 1) for s in range(SHARDS)} == {("uniform", 1)}
    assert {rounds[2, s] for s in range(SHARDS)} == {("hit_utility", 4)}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"allocation.rounds": 25}, r"allocation.rounds \(25\) exceeds the Phase B rollouts of a shard.* ="),
        ({"allocation.rule": "uniform"}, r"allocation.stop \(hit\) goes by successes"),
        ({"allocation.stop": "mixed", "reward.success_at": 0}, "no rollout fails"),
    ],
)
def test_rounds_that_cannot_be_are_refused_in_one_line(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config_of("bad", **more)


class HardIsLong(Fleet):
    """Completions of prompts with a low rate are up to five times as long; lengths follow from the
    request."""

    async def __call__(self, request: SamplingRequest, version: int) -> list[Completion]:
        rate = RATES[request.prompt.index % len(RATES)]
        chance = np.random.default_rng(request.seed)
        lengths = chance.integers(8, 13, request.n) * (1 if rate > 0.5 else 3 if rate > 0.05 else 5)
        fixed = replace(self, lengths_of=lambda n: lengths)
        return await Fleet.__call__(fixed, request, version)


def hard_is_long(seconds: float) -> Fleet:
    return HardIsLong(
        seconds_of=lambda request, _: seconds * random.random(), lengths_of=lambda n: np.zeros(n)
    )


def tokens_over_budget(redis_url: str, config: Config) -> float:
    """Tokens of the run over Γ·G times the mean length of Phase A, batch by batch."""
    phase_a = [t for r in reports(redis_url, config).values() for t in r["rounds"][0]["tokens"]]
    rollout, batches = config.rollout, config.learner.steps
    budget = batches * rollout.prompts_per_batch * rollout.group_size * sum(phase_a) / (len(phase_a) * G0)
    return int(connect(redis_url).hget(Keys(config.run.name).counters, "tokens_in")) / budget


@pytest.mark.system
def test_a_budget_in_tokens_is_spent_however_long_hard_answers_are(redis_url: str) -> None:
    more = {"allocation.stop": "none", "rollout.group_size": 20, "learner.steps": 20}
    spent = {}
    for budget in ("rollouts", "tokens"):
        config = config_of(f"budget-{budget}", **{**more, "allocation.budget": budget})
        asyncio.run(to_the_end(config, redis_url, hard_is_long(0.0)))
        spent[budget] = tokens_over_budget(redis_url, config)
        left = audit(config, gather(connect(redis_url), config.run.name, list))
        assert [f for f in left if "records" not in f] == []
    assert spent["tokens"] == pytest.approx(1.0, abs=0.06)
    assert spent["rollouts"] > 1.1, "hard prompts get more rollouts, and theirs are long"


@pytest.mark.parametrize("budget", ["rollouts", "tokens"])
def test_the_audit_finds_a_round_that_was_divided_otherwise(redis_url: str, budget: str) -> None:
    config = config_of(f"forged-{budget}", **{"allocation.budget": budget})
    asyncio.run(to_the_end(config, redis_url, hard_is_long(0.0)))
    facts = gather(connect(redis_url), config.run.name, list)
    assert divided(config, facts.reports) == []
    report = json.loads(json.dumps(next(r for r in facts.reports if r["batch"] == 2)))
    extra = report["rounds"][2]["extra"]
    most, least = int(np.argmax(extra)), int(np.argmin(extra))
    for counts in (extra, report["extra"]):
        counts[most], counts[least] = counts[most] - 1, counts[least] + 1
    forged = [r for r in facts.reports if (r["batch"], r["shard"]) != (2, report["shard"])]
    (found,) = divided(config, [*forged, report])
    assert found.startswith(f"shard 2:{report['shard']} divided round 3 as {extra}")


def test_a_run_with_a_budget_in_tokens_divides_as_before_when_its_coordinator_dies(redis_url: str) -> None:
    whole, broken = (config_of(f"tokens-{n}", **{"allocation.budget": "tokens"}) for n in ("whole", "broken"))
    asyncio.run(to_the_end(whole, redis_url, hard_is_long(0.0)))
    asyncio.run(killed_in_round(broken, redis_url, hard_is_long(0.05), 3))
    asyncio.run(to_the_end(broken, redis_url, hard_is_long(0.0), "two"))
    assert divisions(redis_url, broken) == divisions(redis_url, whole)
