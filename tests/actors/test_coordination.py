"""Coordinators and a learner that die at random moments, on a real Redis, lose and double nothing."""

import asyncio
import json
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from hora_rl.actors.coordinator.calls import ranked
from hora_rl.actors.coordinator.scheduler import Coordination
from hora_rl.actors.coordinator.store import Leases
from hora_rl.allocator import allocate
from hora_rl.common.data.prompt_order import Mixture, mixed_rows
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.types import Completion, Group, Prompt, SamplingRequest, Scored
from tests.support import coordination
from tests.support.coordination import GROUP, PROMPTS, begun, config_of, payloads_of, trained, until
from tests.support.groups import rollouts_held
from tests.support.simulated import Fleet, score, score_by_chance

IN_ROUNDS = {"rollout.group_size": 10, "allocation.rounds": 4, "rollout.samples_per_request": 2}
RANK = "own:by_length"
AS_IF = {"allocation.rule": "uniform", "learner.objective.group_weight": "{as_if: hit_utility}"}
ROUNDS_3 = {"allocation.rounds": "3"}


@pytest.mark.parametrize("staleness", [0, 1, 2])
@pytest.mark.parametrize("seed", [0, 1])
async def test_every_group_is_trained_once_whoever_dies_when(
    redis_url: str, staleness: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(f"{staleness}:{seed}")
    config = config_of(f"deaths-{staleness}-{seed}", staleness)
    if seed % 2:
        monkeypatch.setattr(Leases, "release", coordination.keeps_its_lease)
    await coordination.with_deaths(config, redis_url, chance, monkeypatch)


@pytest.mark.parametrize("staleness", [0, 1, 2])
@pytest.mark.parametrize("seed", [0, 1])
async def test_the_prompts_that_rest_are_the_same_whoever_dies_when(
    redis_url: str, staleness: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit of `with_deaths` derives each batch's prompts from the reports; with staleness 0 they are
    those of a run without deaths."""
    chance, rest = random.Random(f"rest:{staleness}:{seed}"), {"data.rest": "[solved, unsolved]"}
    config = config_of(f"rest-{staleness}-{seed}", staleness, steps=10, **rest)
    if seed % 2:
        monkeypatch.setattr(Leases, "release", coordination.keeps_its_lease)
    await coordination.with_deaths(config, redis_url, chance, monkeypatch, scoring=score_by_chance)
    found = prompts_of(redis_url, config.run.name)
    assert found != [
        sorted(row for _, row in mixed_rows(b, PROMPTS, Mixture((17,)), config.run.seed)) for b in range(10)
    ], "some rest"
    undisturbed = config_of(f"rest-undisturbed-{staleness}-{seed}", staleness, steps=10, **rest)
    await coordination.to_the_end(undisturbed, redis_url, scoring=score_by_chance)
    assert prompts_of(redis_url, undisturbed.run.name) == found


def prompts_of(redis_url: str, run: str) -> list[list[int]]:
    """The prompts of every batch of a run, sorted."""
    batches = defaultdict[int, list[int]](list)
    for report in map(json.loads, connect(redis_url).hvals(Keys(run).shards)):
        batches[report["batch"]] += report["prompts"]
    return [sorted(batches[b]) for b in sorted(batches)]


@pytest.mark.parametrize("stop", ["none", "hit", "mixed"])
@pytest.mark.parametrize("staleness", [0, 2])
@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2, 3))])
async def test_every_round_is_divided_once_whoever_dies_when(
    redis_url: str, stop: str, staleness: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(f"{stop}:{staleness}:{seed}")
    name, more = f"rounds-{stop}-{staleness}-{seed}", {**IN_ROUNDS, "allocation.stop": stop}
    config = config_of(name, staleness, steps=4, **more)
    if (seed + staleness) % 4 in (1, 2):
        monkeypatch.setattr(Leases, "release", coordination.keeps_its_lease)
    await coordination.with_deaths(config, redis_url, chance, monkeypatch, deaths=8, scoring=score_by_chance)
    for report in map(json.loads, connect(redis_url).hvals(Keys(config.run.name).shards)):
        assert [sum(r["extra"]) for r in report["rounds"]] == [PROMPTS // 3 * (10 - 2) // 4] * 4
        assert_stops(report, stop)


async def by_length(prompt: Prompt, group: Group) -> Group:
    """How many rollouts of its group are longer, for each."""
    await asyncio.sleep(0.005)
    lengths = [len(r.tokens) for r in group.rollouts]
    return ranked(group, [{RANK: float(sum(n < other for other in lengths))} for n in lengths])


@pytest.mark.parametrize("rounds", [1, 3])
async def test_every_rollout_is_ranked_in_its_whole_group_whoever_dies_when(
    redis_url: str, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"reward.weights": {"format": 0.0, "accuracy": 1.0, RANK: 0.5}, "allocation.rounds": rounds}
    chance, config = random.Random(rounds), config_of(f"ranked-{rounds}", 1, **more)
    monkeypatch.setattr(Leases, "release", coordination.keeps_its_lease)
    payloads = await coordination.with_deaths(config, redis_url, chance, monkeypatch, rank=by_length)
    assert any(g.extra for g in payloads.values())
    for g in payloads.values():
        lengths = [len(r.tokens) for r in g.rollouts]
        assert [r.rewards[RANK] for r in g.rollouts] == [sum(n < m for m in lengths) for n in lengths]
        assert {len(r.rewards) for r in g.rollouts} == {3}


def assert_stops(report: dict[str, Any], stop: str) -> None:
    """A prompt that needs no more got nothing while another of its shard could use it."""
    n = len(report["groups"])
    hits, trials = [0] * n, [report["trials"]] * n
    for division in report["rounds"]:
        hits = [a + b for a, b in zip(hits, division["successes"], strict=True)]
        wants = [h == 0 or (stop == "mixed" and h == t) for h, t in zip(hits, trials, strict=True)]
        if stop != "none" and any(wants):
            assert all(w or not extra for w, extra in zip(wants, division["extra"], strict=True))
        trials = [t + extra for t, extra in zip(trials, division["extra"], strict=True)]


async def test_a_full_queue_pauses_the_coordinator_after_the_shard_in_hand(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hora_rl.common.config.Config.capacity", 30)
    config = config_of("full", staleness=4, steps=5, **{"rollout.shards_in_flight": 1})
    keys, client = Keys("full"), connect(redis_url)
    work = begun(config, redis_url)
    await until(lambda: client.xlen(keys.groups) >= 30)
    await asyncio.sleep(0.5)
    assert client.xlen(keys.groups) == 30
    learner = await trained(config, redis_url, work)
    assert sorted(learner.trained) == list(range(5))


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
    await asyncio.sleep(0.1)
    assert client.xlen(keys.groups) == fleet.requests == 0
    client.hset(keys.state, "paused", "0")
    await until(lambda: client.hlen(keys.shards) >= (5 if in_flight > 1 else 0))  # all but the first
    held = {"generators": 0, "verifiers": 0, part: PROMPTS // 3}
    asked = f"requests: {held['generators']} at generators, {held['verifiers']} at verifiers"
    await until(lambda: made[0].waiting_for == asked)
    await asyncio.sleep(0.2)
    assert made[0].waiting_for.startswith("requests: ")
    await coordination.killed(work)
    assert made[0].waiting_for == "requests: 0 at generators, 0 at verifiers"


@pytest.mark.parametrize("more", [{}, AS_IF, ROUNDS_3], ids=["hit_utility", "as if hit_utility", "3 rounds"])
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


async def test_requests_of_the_oldest_shard_come_first(redis_url: str) -> None:
    config, seen = config_of("order", staleness=1, steps=2), set()
    fleet = Fleet(fault=lambda request: seen.add((request.prompt.index, request.priority)))
    await coordination.to_the_end(config, redis_url, fleet)
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
    "more", [{"allocation.rule": "uniform"}, {"allocation.warmup.enabled": "true"}], ids=["rule", "gate"]
)
async def test_a_shard_that_needs_no_counts_asks_for_all_of_it(redis_url: str, more: dict[str, str]) -> None:
    config = config_of(f"at-once-{'-'.join(more)}", staleness=0, steps=2, **more)
    fleet = Together(expected=2 * PROMPTS // 3)  # two rollouts and three rollouts of each prompt
    await coordination.to_the_end(config, redis_url, fleet)
    assert set(fleet.asked.values()) == {4}, "and for nothing twice"
    for report in map(json.loads, connect(redis_url).hvals(Keys(config.run.name).shards)):
        assert report["extra"] == [GROUP - 2] * 2
        kinds = [index % 3 for index in report["prompts"]]
        assert report["successes"] == [{0: 2, 1: 1, 2: 0}[kind] for kind in kinds], "of the first two alone"
