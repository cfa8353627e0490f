"""Phase B in rounds on a real Redis: what a coordinator leaves in a round is what the next one continues."""

import json
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from hora_rl.common.config import Config
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.types import SamplingRequest
from hora_rl.deploy.monitor.reading import read_run
from hora_rl.evaluation.audit import audit
from hora_rl.evaluation.audit_records import divisions as divided
from hora_rl.evaluation.audit_records import gather
from tests.support.coordination import PROMPTS as GAMMA
from tests.support.coordination import begun, killed, payloads_of, to_the_end, until
from tests.support.coordination import config_of as small_run
from tests.support.groups import rollouts_held
from tests.support.simulated import Fleet, score_by_chance

G, G0, SHARDS, STEPS = 10, 2, 2, 3


def config_of(name: str, **more: Any) -> Config:
    rounds = {"allocation.rounds": 4, "allocation.stop": "hit"}
    shape = {"rollout.group_size": G, "rollout.shards": SHARDS, "rollout.shards_in_flight": 8}
    return small_run(name, 0, STEPS, **{**shape, **rounds, **more})


def fleet_of(seconds: float, asked: list[SamplingRequest] | None = None) -> Fleet:
    """Requests are noted in `asked` when they are answered."""
    note = (lambda request: None) if asked is None else asked.append
    return Fleet(lambda request, _: seconds * random.random(), fault=note)


async def run(config: Config, redis_url: str, fleet: Fleet | None = None, owner: str = "one") -> None:
    await to_the_end(config, redis_url, fleet or fleet_of(0.0), owner, score_by_chance)


def reports(redis_url: str, config: Config) -> dict[tuple[int, int], dict[str, Any]]:
    found = map(json.loads, connect(redis_url).hvals(Keys(config.run.name).shards))
    return {(r["batch"], r["shard"]): r for r in found}


def divisions(redis_url: str, config: Config) -> dict[tuple[int, int], Any]:
    return {place: r["rounds"] for place, r in reports(redis_url, config).items()}


def newest_round(redis_url: str, config: Config, shard: str) -> int:
    plans = connect(redis_url).hkeys(Keys(config.run.name).plans)
    return max([1, *(number for number in range(2, 5) if f"{shard}:{number}".encode() in plans)])


async def killed_in_round(config: Config, redis_url: str, fleet: Fleet, number: int) -> str:
    """Kill a coordinator when a shard's newest plan is of round `number`; the shard's name."""
    keys, client = Keys(config.run.name), connect(redis_url)

    def planned() -> str | None:
        open_ = {f.decode() for f in client.hkeys(keys.plans) if f.count(b":") == 1}
        open_ -= {f.decode() for f in client.hkeys(keys.shards)}
        return next((n for n in sorted(open_) if newest_round(redis_url, config, n) == number), None)

    work = begun(config, redis_url, fleet, scoring=score_by_chance)
    shard: str = await until(planned)
    await killed(work)
    return shard


async def test_views_count_all_rounds_under_the_successes_of_phase_a(redis_url: str) -> None:
    config = config_of("views")
    await run(config, redis_url)
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
async def test_a_coordinator_killed_in_a_round_leaves_all_that_the_next_one_needs(
    redis_url: str, number: int
) -> None:
    """Shards of a run that is repeated, and of one that is continued, are divided as before."""
    whole, broken = config_of(f"whole-{number}"), config_of(f"broken-{number}")
    await run(whole, redis_url, fleet_of(0.01))
    shard = await killed_in_round(broken, redis_url, fleet_of(0.05), number)
    number = newest_round(redis_url, broken, shard)
    pushed = connect(redis_url).hkeys(Keys(broken.run.name).pushed)
    asked = list[SamplingRequest]()
    await run(broken, redis_url, fleet_of(0.0, asked), "two")
    assert divisions(redis_url, broken) == divisions(redis_url, whole)
    assert len({str(r) for r in divisions(redis_url, whole).values()}) > 1
    batch, index = map(int, shard.split(":"))
    assert batch == 0
    mine = reports(redis_url, broken)[batch, index]
    left = sum(
        extra
        for r in mine["rounds"][number - 1 :]
        for group, extra in zip(mine["groups"], r["extra"], strict=True)
        if group.encode() not in pushed
    )
    later = sum(
        G0 + extra
        for (b, _), r in reports(redis_url, broken).items()
        for prompt, extra in zip(r["prompts"], r["extra"], strict=True)
        if b > 0 and prompt in mine["prompts"]
    )
    found = sum(request.n for request in asked if request.prompt.index in mine["prompts"])
    assert found == left + later, "of that shard, this round and those after it alone"
    assert rollouts_held(connect(redis_url), broken.run.name) == set()


@pytest.mark.parametrize(("what", "number"), [("pre_rollouts", 1), ("pre_rollouts", 3), ("drawn", 3)])
async def test_rollouts_lost_with_their_coordinator_cost_their_group_alone(
    redis_url: str, what: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(f"lost-{what}-{number}")
    keys, client, payloads = Keys(config.run.name), connect(redis_url), payloads_of(monkeypatch)
    client.hset(keys.state, "error", "what the one before gave up for")
    await killed_in_round(config, redis_url, fleet_of(0.05), number)
    stored = [key.split(":") for key in sorted(rollouts_held(client, config.run.name))]
    unpushed = [key for key in stored if not client.hexists(keys.pushed, ":".join(key[1:3]))]
    lost = next(key for key in unpushed if key[0] == what)
    client.set(f"hora:{{{config.run.name}}}:{':'.join(lost)}", b"\x00damaged")
    await run(config, redis_url, owner="two")
    assert all(sum(r["extra"]) == GAMMA // SHARDS * (G - G0) for r in reports(redis_url, config).values())
    assert sum(g.size for g in payloads.values()) == STEPS * GAMMA * G
    assert client.hlen(keys.redo) == client.xlen(keys.dead) == 0
    assert rollouts_held(client, config.run.name) == set()
    unrecorded = [f"step {step} is in a checkpoint and not in the records" for step in range(STEPS)]
    assert audit(config, gather(client, config.run.name, list)) == unrecorded


async def test_while_the_gate_is_shut_a_shard_has_one_round(redis_url: str) -> None:
    config = config_of("shut", **{"allocation.warmup.enabled": "true", "allocation.warmup.cycles": 2})
    await run(config, redis_url)
    rounds = {place: (r["rule"], len(r["rounds"])) for place, r in reports(redis_url, config).items()}
    assert {rounds[b, s] for b in (0, 1) for s in range(SHARDS)} == {("uniform", 1)}
    assert {rounds[2, s] for s in range(SHARDS)} == {("hit_utility", 4)}


async def test_the_audit_finds_a_round_that_was_divided_otherwise(redis_url: str) -> None:
    config = config_of("forged")
    await run(config, redis_url)
    facts = gather(connect(redis_url), config.run.name, list)
    assert divided(config.allocation, config.rollout, facts.reports) == []
    report = json.loads(json.dumps(next(r for r in facts.reports if r["batch"] == 2)))
    extra = report["rounds"][2]["extra"]
    most, least = int(np.argmax(extra)), int(np.argmin(extra))
    for counts in (extra, report["extra"]):
        counts[most], counts[least] = counts[most] - 1, counts[least] + 1
    forged = [r for r in facts.reports if (r["batch"], r["shard"]) != (2, report["shard"])]
    (found,) = divided(config.allocation, config.rollout, [*forged, report])
    assert found.startswith(f"shard 2:{report['shard']} divided round 3 as {extra}")
