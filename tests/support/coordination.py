"""Coordinators and a learner of a small run that may die at any moment, and what they left behind."""

import asyncio
import json
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hora_rl.actors.coordinator.sampling import Score
from hora_rl.actors.coordinator.scheduler import Coordination
from hora_rl.actors.coordinator.shard import Rank, unranked
from hora_rl.actors.coordinator.store import Leases
from hora_rl.common.config import Config
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.load import load
from hora_rl.common.records import GroupRecord
from hora_rl.common.types import Group, Prompt
from hora_rl.evaluation.audit import audit
from hora_rl.evaluation.audit_records import gather
from hora_rl.learner.feed.reader import Reader
from tests.support.groups import rollouts_held
from tests.support.simulated import Fleet, Learner, Stopped, coordinate, prompts

PROMPTS, GROUP = 6, 5
COPIED = ("batch", "size", "extra", "hits", "shard", "successes")


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
        "allocation.warmup.enabled": "false",
        **more,
    }
    return load("tiny", [f"{k}={v}" for k, v in settings.items()])


def fleet_of(chance: random.Random, longest_s: float) -> Fleet:
    return Fleet(
        seconds_of=lambda request, lengths: chance.random() * longest_s,
        lengths_of=lambda n: np.array([chance.randint(1, 5) for _ in range(n)]),
    )


def records(learner: Learner, payloads: dict[str, Any]) -> list[GroupRecord]:
    """groups.jsonl as the learner would have written it."""
    lines = []
    for step, ids in learner.trained.items():
        for g in (payloads[i] for i in ids):
            line = {name: getattr(g, name) for name in COPIED}
            line |= {"step": step, "group_id": g.id, "rounds": list(g.rounds), "trials": g.pre_rollouts}
            line |= {"version_min": g.versions[0], "version_max": g.versions[1]}
            lines.append(json.loads(json.dumps(line)))
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


async def until(condition: Callable[[], Any]) -> Any:
    """What `condition` returns, once that is true: within 20 seconds."""
    async with asyncio.timeout(20):
        while not (found := condition()):
            await asyncio.sleep(0.001)
    return found


async def killed(work: asyncio.Task[Any]) -> None:
    """End a coordinator. redis-py can swallow a cancellation."""
    while not work.done():
        work.cancel()
        await asyncio.wait([work], timeout=0.05)


def begun(
    config: Config,
    redis_url: str,
    fleet: Fleet | None = None,
    owner: str = "one",
    scoring: Score | None = None,
    data: list[Prompt] | None = None,
) -> asyncio.Task[Coordination]:
    """A coordinator at work."""
    fleet = fleet or fleet_of(random.Random(0), 0.001)
    return asyncio.create_task(coordinate(config, redis_url, data or prompts(17), fleet, owner, scoring))


async def trained(config: Config, redis_url: str, work: asyncio.Task[Coordination]) -> Learner:
    """Run a learner until all steps are trained and the coordinator has ended."""
    learner = Learner(config, redis_url, lambda: 0.0)
    async with asyncio.timeout(40):
        await asyncio.to_thread(learner.run)
        await work
    return learner


async def to_the_end(config: Config, redis_url: str, *args: Any, **more: Any) -> None:
    """Run one coordinator, as `begun`, and a learner."""
    await trained(config, redis_url, begun(config, redis_url, *args, **more))


async def with_deaths(
    config: Config,
    redis_url: str,
    chance: random.Random,
    monkeypatch: pytest.MonkeyPatch,
    deaths: int = 6,
    scoring: Score | None = None,
    rank: Rank = unranked,
    fleet: Fleet | None = None,
) -> dict[str, Group]:
    """Run two coordinators to the end, each death taking one of them or the learner, and check every promise.
    Returns the groups by id."""
    data, fleet = prompts(17), fleet or fleet_of(chance, 0.02)
    learner = Learner(config, redis_url, lambda: chance.random() * 0.02, checkpoint_every=2)
    payloads = payloads_of(monkeypatch)
    lives = 0

    def coordinator() -> asyncio.Task[Any]:
        nonlocal lives
        lives += 1
        owner = f"coordinator-{lives}"
        return asyncio.create_task(coordinate(config, redis_url, data, fleet, owner, scoring, rank))

    failures: list[BaseException] = []

    def learn() -> threading.Thread:
        def work() -> None:
            try:
                learner.run()
            except Stopped:
                pass
            except BaseException as error:  # noqa: BLE001  a thread has no caller
                failures.append(error)

        learner.stop.clear()
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    tasks, thread = [coordinator() for _ in range(2)], learn()
    for _ in range(deaths):
        await asyncio.sleep(chance.random() * 0.15)
        if chance.random() < 0.4:
            learner.stop.set()
            await asyncio.to_thread(thread.join)
            thread = learn()
        else:
            victim = chance.randrange(2)
            tasks[victim].cancel()
            await asyncio.gather(tasks[victim], return_exceptions=True)
            tasks[victim] = coordinator()
    async with asyncio.timeout(30):
        await asyncio.gather(*tasks)
        await asyncio.to_thread(thread.join)
    assert not failures
    _promises_were_kept(redis_url, config, learner, payloads)
    return payloads


async def keeps_its_lease(self: Leases, name: str, release: Any = Leases.release) -> None:
    """A killed process releases nothing: its lease runs out."""
    task = asyncio.current_task()
    if task is not None and not task.cancelling():
        await release(self, name)


def _promises_were_kept(redis_url: str, config: Config, learner: Learner, payloads: dict[str, Group]) -> None:
    """Each group trained once, Γ·G rollouts a batch, nothing left in Redis, and a clean audit."""
    steps = [learner.trained[s] for s in range(config.learner.steps)]
    assert [len(ids) for ids in steps] == [PROMPTS] * config.learner.steps
    assert len({i for ids in steps for i in ids}) == PROMPTS * config.learner.steps
    for batch in range(config.learner.steps):
        rollouts = PROMPTS * config.rollout.group_size
        assert sum(g.size for g in payloads.values() if g.batch == batch) == rollouts
    client = connect(redis_url)
    assert audit(config, gather(client, config.run.name, lambda: records(learner, payloads))) == []
    keys = Keys(config.run.name)
    assert client.xlen(keys.groups) == 0
    plans, later = set(client.hkeys(keys.plans)), range(2, config.allocation.rounds + 1)
    shards = set(client.hkeys(keys.shards))
    assert plans == shards | {b"%s:%d" % (shard, number) for shard in shards for number in later}
    assert rollouts_held(client, config.run.name) == set()
