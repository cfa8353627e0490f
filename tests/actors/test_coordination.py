"""Coordinators and a learner that die at random moments, on a real Redis: nothing is lost, nothing is
doubled."""

import asyncio
import json
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from actors.coordinator.leases import Leases
from actors.coordinator.ranking import Rank, ranked, unranked
from actors.coordinator.sampling import Score
from actors.coordinator.scheduler import Coordination
from allocator import allocate
from common.config import Config
from common.errors import RunError
from common.keys import Keys
from common.load import load
from common.order import batch_rows
from common.redis import connect
from common.types import Completion, Group, Prompt, SamplingRequest, Scored
from evaluation.audit import audit, gather
from learner.steps import Reader
from tests.support.held import rollouts_held
from tests.support.simulated import Fleet, Learner, Stopped, coordinate, prompts, score, score_by_chance

PROMPTS, GROUP = 6, 5


def config_of(name: str, staleness: int, steps: int = 6, **more: Any) -> Config:
    settings = {
        "run.name": name,
        "rollout.prompts_per_batch": PROMPTS,
        "rollout.group_size": GROUP,
        "rollout.pre_rollouts": 2,
        "rollout.shards": 3,
        "rollout.shards_in_flight": 4,
        "rollout.samples_per_request": 3,
        "rollout.max_staleness": staleness,
        "learner.steps": steps,
        "coordinator.lease_s": 0.3,
        "allocation.warmup.enabled": "false",
        **more,
    }
    return load("tiny", [f"{k}={v}" for k, v in settings.items()])


def fleet_of(chance: random.Random, longest_s: float) -> Fleet:
    return Fleet(
        seconds_of=lambda request, lengths: chance.random() * longest_s,
        lengths_of=lambda n: np.array([chance.randint(1, 5) for _ in range(n)]),
    )


def records(learner: Learner, config: Config, payloads: dict[str, Any]) -> list[str]:
    """groups.jsonl as the learner would have written it."""
    lines = []
    for step, ids in learner.trained.items():
        for i in ids:
            g = payloads[i]
            line = {"step": step, "batch": g.batch, "group_id": i, "size": g.size, "extra": g.extra}
            line |= {"version_min": g.versions[0], "version_max": g.versions[1], "hits": g.hits}
            line |= {
                "rounds": list(g.rounds),
                "shard": g.shard,
                "trials": g.pre_rollouts,
                "successes": g.successes,
            }
            lines.append(json.dumps(line))
    return lines


def payloads_of(monkeypatch: pytest.MonkeyPatch) -> dict[str, Group]:
    """Fills with the groups, by id, that learners read from here on."""
    payloads: dict[str, Group] = {}
    read = Reader.read

    def remembered(self: Reader, step: int) -> list[Group]:
        groups = read(self, step)
        payloads.update({g.id: g for g in groups})
        return groups

    monkeypatch.setattr(Reader, "read", remembered)
    return payloads


async def with_deaths(
    config: Config,
    redis_url: str,
    chance: random.Random,
    coordinators: int,
    deaths: int,
    monkeypatch: Any,
    scoring: Score | None = None,
    rank: Rank = unranked,
) -> tuple[Learner, dict[str, Group]]:
    """Run to the end with `coordinators` at once, each death taking one of them or the learner."""
    data, fleet = prompts(17), fleet_of(chance, 0.02)
    learner = Learner(config, redis_url, lambda: chance.random() * 0.02, checkpoint_every=2)
    payloads = payloads_of(monkeypatch)
    lives = 0

    def coordinator() -> asyncio.Task[Any]:
        nonlocal lives
        lives += 1
        return asyncio.create_task(
            coordinate(config, redis_url, data, fleet, f"coordinator-{lives}", scoring, rank)
        )

    failures: list[BaseException] = []

    def learn() -> threading.Thread:
        def work() -> None:
            try:
                learner.run()
            except Stopped:
                pass
            except BaseException as error:
                failures.append(error)

        learner.stop.clear()
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    tasks, thread = [coordinator() for _ in range(coordinators)], learn()
    for _ in range(deaths):
        await asyncio.sleep(chance.random() * 0.15)
        if chance.random() < 0.4:
            learner.stop.set()
            await asyncio.to_thread(thread.join)
            thread = learn()
        else:
            victim = chance.randrange(coordinators)
            tasks[victim].cancel()
            await asyncio.gather(tasks[victim], return_exceptions=True)
            tasks[victim] = coordinator()
    async with asyncio.timeout(30):
        await asyncio.gather(*tasks)
        await asyncio.to_thread(thread.join)
    assert not failures
    return learner, payloads


async def keeps_its_lease(self: Leases, name: str) -> None:
    """A killed process releases nothing: its lease runs out."""
    task = asyncio.current_task()
    if task is not None and not task.cancelling():
        await self._release(keys=[self._key(name)], args=[self._owner])


@pytest.mark.parametrize("staleness", [0, 1, 2])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(s, marks=pytest.mark.system) for s in (2, 3))])
def test_every_group_is_trained_once_whoever_dies_when(
    redis_url: str, staleness: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(f"{staleness}:{seed}")
    config = config_of(f"deaths-{staleness}-{seed}", staleness)
    if seed % 2:
        monkeypatch.setattr(Leases, "release", keeps_its_lease)
    learner, payloads = asyncio.run(
        with_deaths(config, redis_url, chance, coordinators=2, deaths=6, monkeypatch=monkeypatch)
    )
    every_promise_was_kept(redis_url, config, learner, payloads)


IN_ROUNDS = {"rollout.group_size": 10, "allocation.rounds": 4, "rollout.samples_per_request": 2}


@pytest.mark.parametrize("stop", ["none", "hit", "mixed"])
@pytest.mark.parametrize("staleness", [0, 2])
@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2, 3))])
def test_every_round_is_divided_once_whoever_dies_when(
    redis_url: str, stop: str, staleness: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(f"{stop}:{staleness}:{seed}")
    config = config_of(
        f"rounds-{stop}-{staleness}-{seed}", staleness, steps=4, **IN_ROUNDS, **{"allocation.stop": stop}
    )
    if (seed + staleness) % 4 in (1, 2):
        monkeypatch.setattr(Leases, "release", keeps_its_lease)
    learner, payloads = asyncio.run(
        with_deaths(
            config,
            redis_url,
            chance,
            coordinators=2,
            deaths=8,
            monkeypatch=monkeypatch,
            scoring=score_by_chance,
        )
    )
    every_promise_was_kept(redis_url, config, learner, payloads)
    for report in map(json.loads, connect(redis_url).hvals(Keys(config.run.name).shards)):
        assert [sum(r["extra"]) for r in report["rounds"]] == [PROMPTS // 3 * (10 - 2) // 4] * 4
        assert_stops(report, stop)


RANK = "own:by_length"


async def by_length(prompt: Prompt, group: Group) -> Group:
    """How many rollouts of its group are longer, for each."""
    await asyncio.sleep(0.005)
    lengths = [len(r.tokens) for r in group.rollouts]
    return ranked(group, [{RANK: float(sum(n < other for other in lengths))} for n in lengths])


@pytest.mark.parametrize("rounds", [1, 3])
def test_every_rollout_is_ranked_in_its_whole_group_whoever_dies_when(
    redis_url: str, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"reward.weights": {"format": 0.0, "accuracy": 1.0, RANK: 0.5}, "allocation.rounds": rounds}
    chance, config = random.Random(rounds), config_of(f"ranked-{rounds}", 1, **more)
    monkeypatch.setattr(Leases, "release", keeps_its_lease)
    learner, payloads = asyncio.run(
        with_deaths(
            config, redis_url, chance, coordinators=2, deaths=6, monkeypatch=monkeypatch, rank=by_length
        )
    )
    every_promise_was_kept(redis_url, config, learner, payloads)
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


def every_promise_was_kept(
    redis_url: str, config: Config, learner: Learner, payloads: dict[str, Group]
) -> None:
    """Each group trained once, Γ·G rollouts a batch, nothing left in Redis, and a clean audit."""
    steps = [learner.trained[s] for s in range(config.learner.steps)]
    assert [len(ids) for ids in steps] == [PROMPTS] * config.learner.steps
    assert len({i for ids in steps for i in ids}) == PROMPTS * config.learner.steps
    for batch in range(config.learner.steps):
        rollouts = PROMPTS * config.rollout.group_size
        assert sum(g.size for g in payloads.values() if g.batch == batch) == rollouts
    client = connect(redis_url)
    assert audit(config, gather(client, config.run.name, lambda: records(learner, config, payloads))) == []
    keys = Keys(config.run.name)
    assert client.xlen(keys.groups) == 0
    plans, later = set(client.hkeys(keys.plans)), range(2, config.allocation.rounds + 1)
    shards = set(client.hkeys(keys.shards))
    assert plans == shards | {b"%s:%d" % (shard, number) for shard in shards for number in later}
    assert rollouts_held(client, config.run.name) == set()


def test_a_full_queue_pauses_the_coordinator_after_the_shard_in_hand(redis_url: str) -> None:
    config = config_of("full", staleness=4, steps=5, **{"rollout.shards_in_flight": 1, "queue.capacity": 30})
    keys, client = Keys("full"), connect(redis_url)

    async def scenario() -> None:
        work = asyncio.create_task(
            coordinate(config, redis_url, prompts(17), fleet_of(random.Random(0), 0.001), "one")
        )
        async with asyncio.timeout(20):
            while client.xlen(keys.groups) < 30:
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)
        assert client.xlen(keys.groups) == 30
        learner = Learner(config, redis_url, lambda: 0.0)
        async with asyncio.timeout(20):
            await asyncio.to_thread(learner.run)
            await work
        assert sorted(learner.trained) == list(range(5))

    asyncio.run(scenario())


def test_a_paused_run_finishes_what_it_has_begun_and_goes_on_when_resumed(redis_url: str) -> None:
    config = config_of("paused", staleness=1, steps=3)
    keys, client = Keys("paused"), connect(redis_url)
    client.hset(keys.state, "paused", "1")

    async def scenario() -> None:
        work = asyncio.create_task(
            coordinate(config, redis_url, prompts(17), fleet_of(random.Random(0), 0.001), "one")
        )
        await asyncio.sleep(0.5)
        assert client.xlen(keys.groups) == 0
        client.hset(keys.state, "paused", "0")
        learner = Learner(config, redis_url, lambda: 0.0)
        async with asyncio.timeout(20):
            await asyncio.to_thread(learner.run)
            await work

    asyncio.run(scenario())
    assert client.hlen(keys.shards) == 9


@pytest.mark.parametrize("in_flight", [1, 4])
@pytest.mark.parametrize("part", ["generators", "verifiers"])
def test_a_coordinator_names_the_requests_that_hold_it_up_and_not_the_learner(
    redis_url: str, part: str, in_flight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(f"held-{part}-{in_flight}", staleness=1, **{"rollout.shards_in_flight": in_flight})
    keys, client, made = Keys(config.run.name), connect(redis_url), list[Coordination]()
    run = Coordination.run
    monkeypatch.setattr(Coordination, "run", lambda self: (made.append(self), run(self))[1])
    first = {row for _, row in batch_rows(0, PROMPTS, 17, config.run.seed)[: PROMPTS // 3]}

    async def slow_score(prompt: Prompt, completions: Sequence[Completion]) -> list[Scored]:
        await asyncio.sleep(60.0 if part == "verifiers" and prompt.index in first else 0.0)
        return await score(prompt, completions)

    monkeypatch.setattr("tests.support.simulated.score", slow_score)
    fleet = Fleet(
        seconds_of=lambda request, _: 60.0 if part == "generators" and request.priority == 0 else 0.0,
        lengths_of=lambda n: np.full(n, 2),
    )
    client.hset(keys.state, "paused", "1")

    async def comes_to_wait_for(what: str) -> None:
        async with asyncio.timeout(10):
            while not (made and made[0].waiting_for == what):
                await asyncio.sleep(0.01)

    async def scenario() -> None:
        work = asyncio.create_task(coordinate(config, redis_url, prompts(17), fleet, "one"))
        await comes_to_wait_for("an operator: the run is paused")
        client.hset(keys.state, "paused", "0")
        async with asyncio.timeout(10):
            while client.hlen(keys.shards) < (5 if in_flight > 1 else 0):  # all that may start but the first
                await asyncio.sleep(0.01)
        held = {"generators": 0, "verifiers": 0, part: PROMPTS // 3}
        await comes_to_wait_for(
            f"requests: {held['generators']} at generators, {held['verifiers']} at verifiers"
        )
        await asyncio.sleep(0.2)
        assert made[0].waiting_for.startswith("requests: ")
        while not work.done():  # redis-py can swallow a cancellation
            work.cancel()
            await asyncio.wait([work], timeout=0.5)
        assert made[0].waiting_for == "requests: 0 at generators, 0 at verifiers"

    asyncio.run(scenario())


AS_IF = {"allocation.rule": "uniform", "learner.objective.group_weight": "{as_if: hit_utility}"}


ROUNDS_3 = {"allocation.rounds": "3"}


@pytest.mark.parametrize(
    "more", [{}, AS_IF, ROUNDS_3], ids=["hit_utility", "uniform as if hit_utility", "3 rounds"]
)
@pytest.mark.parametrize("part", ["pre_rollouts", "additional"])
def test_a_group_the_learner_cannot_use_is_sampled_again_at_the_size_its_plan_gave_it(
    redis_url: str, part: str, more: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(f"redo-{part}-{'-'.join(more)}", staleness=1, steps=2, **more)
    keys, client = Keys(config.run.name), connect(redis_url)
    payloads = payloads_of(monkeypatch)

    async def scenario() -> Learner:
        work = asyncio.create_task(
            coordinate(config, redis_url, prompts(17), fleet_of(random.Random(0), 0.001), "one")
        )
        async with asyncio.timeout(20):
            while (
                client.hlen(keys.shards) < 3
            ):  # the first batch is generated; nobody has claimed a group yet
                await asyncio.sleep(0.02)
            entry, fields = client.xrange(keys.groups, count=1)[0]
            group_id = fields[b"id"].decode()
            damaged = {
                "pre_rollouts": keys.pre_rollouts(group_id),
                "additional": keys.additional(entry.decode()),
            }
            client.set(damaged[part], b"\x00damaged")
            learner = Learner(config, redis_url, lambda: 0.0)
            await asyncio.to_thread(learner.run)
            await work
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
        return learner

    asyncio.run(scenario())
    assert client.xlen(keys.dead) == 1
    assert client.hlen(keys.redo) == 0
    assert rollouts_held(client, config.run.name) == set()


def test_pre_rollouts_lost_with_their_coordinator_are_drawn_again_at_the_plans_size(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of("lost", staleness=1, steps=2)
    keys, client, payloads = Keys("lost"), connect(redis_url), payloads_of(monkeypatch)
    client.hset(keys.state, "error", "what the one before gave up for")

    async def scenario() -> None:
        fleet = fleet_of(random.Random(0), 0.05)
        first = asyncio.create_task(coordinate(config, redis_url, prompts(17), fleet, "one"))
        async with asyncio.timeout(20):
            while not (planned := set(client.hkeys(keys.plans)) - set(client.hkeys(keys.shards))):
                await asyncio.sleep(0.001)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        shard = sorted(planned)[0]
        unpushed = [
            k
            for k in client.scan_iter(keys.pre_rollouts("*"))
            if not client.hexists(keys.pushed, k.decode().removeprefix(keys.pre_rollouts("")))
        ]
        assert unpushed, shard
        client.set(unpushed[0], b"\x00damaged")
        learner = Learner(config, redis_url, lambda: 0.0)
        async with asyncio.timeout(30):
            work = asyncio.create_task(coordinate(config, redis_url, prompts(17), fleet, "two"))
            await asyncio.to_thread(learner.run)
            await work
        assert sum(len(ids) for ids in learner.trained.values()) == 2 * PROMPTS

    asyncio.run(scenario())
    assert sum(g.size for g in payloads.values()) == 2 * PROMPTS * GROUP
    assert client.hlen(keys.redo) == client.xlen(keys.dead) == 0
    assert rollouts_held(client, config.run.name) == set()


def test_a_coordinator_with_other_data_gives_up_before_it_asks_for_anything(redis_url: str) -> None:
    config, fleet = config_of("other-data", staleness=1, steps=2), fleet_of(random.Random(0), 0.001)

    async def scenario() -> None:
        first = asyncio.create_task(coordinate(config, redis_url, prompts(17), fleet, "one"))
        async with asyncio.timeout(20):
            while not connect(redis_url).exists(Keys("other-data").plans):
                await asyncio.sleep(0.005)
        other = fleet_of(random.Random(0), 0.001)
        with pytest.raises(RunError, match="begun with 17 prompts"):
            await coordinate(config, redis_url, prompts(16), other, "two")
        changed = config_of("other-data", staleness=1, steps=2, **{"rollout.temperature": 0.5})
        with pytest.raises(RunError, match=r"rollout\.temperature: 1\.0 != 0\.5"):
            await coordinate(changed, redis_url, prompts(17), other, "two")
        assert other.requests == 0
        async with asyncio.timeout(20):
            await asyncio.to_thread(Learner(config, redis_url, lambda: 0.0).run)
            await first

    asyncio.run(scenario())


def test_requests_are_numbered_by_their_shards_place_in_the_run_so_that_the_oldest_come_first(
    redis_url: str,
) -> None:
    config, seen = config_of("order", staleness=1, steps=2), set()
    fleet = Fleet(
        seconds_of=lambda request, lengths: 0.0,
        lengths_of=lambda n: np.full(n, 2),
        fault=lambda request: seen.add((request.prompt.index, request.priority)),
    )

    async def scenario() -> None:
        work = asyncio.create_task(coordinate(config, redis_url, prompts(17), fleet, "one"))
        async with asyncio.timeout(20):
            await asyncio.to_thread(Learner(config, redis_url, lambda: 0.0).run)
            await work

    asyncio.run(scenario())
    rows = [row for b in (0, 1) for _, row in batch_rows(b, PROMPTS, 17, config.run.seed)]
    per_shard = PROMPTS // config.rollout.shards
    assert seen == {(row, place // per_shard) for place, row in enumerate(rows)}


class Together(Fleet):
    """Answers no request of a shard before `expected` of them are there."""

    def __init__(self, expected: int) -> None:
        super().__init__(seconds_of=lambda request, _: 0.0, lengths_of=lambda n: np.full(n, 2))
        self.expected, self.asked, self.all_there = (
            expected,
            Counter[int](),
            defaultdict[int, Any](asyncio.Event),
        )

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
def test_a_shard_whose_allocation_needs_no_counts_asks_for_everything_at_once(
    redis_url: str, name: str, more: dict[str, str]
) -> None:
    config = config_of(f"at-once-{name}", staleness=0, steps=2, **more)
    fleet = Together(expected=2 * PROMPTS // 3)  # two rollouts and three rollouts of each prompt

    async def scenario() -> None:
        work = asyncio.create_task(coordinate(config, redis_url, prompts(17), fleet, "one"))
        async with asyncio.timeout(20):
            await asyncio.to_thread(Learner(config, redis_url, lambda: 0.0).run)
            await work

    asyncio.run(scenario())
    assert set(fleet.asked.values()) == {4}, "and for nothing twice"
    for report in map(json.loads, connect(redis_url).hvals(Keys(config.run.name).shards)):
        assert report["extra"] == [GROUP - 2] * 2
        kinds = [index % 3 for index in report["prompts"]]
        assert report["successes"] == [{0: 2, 1: 1, 2: 0}[kind] for kind in kinds], "of the first two alone"
