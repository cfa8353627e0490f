"""Gate, priors and budgets over whole simulated runs: they follow from the cycles, not from timing."""

import asyncio
import json
import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from hora_rl.actors.coordinator.cycles import Cycles
from hora_rl.actors.coordinator.leases import Leases
from hora_rl.allocator.priors.empirical import EmpiricalPrior, fit_beta
from hora_rl.allocator.priors.fixed import FixedPrior
from hora_rl.common.config import Config
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from tests.support.cycles import (
    G0,
    SHARDS,
    N,
    config_of,
    knows,
    play,
    report,
    shared_out,
)
from tests.support.simulated import Fleet, Learner, coordinate, prompts

FLEET = Fleet(seconds_of=lambda request, lengths: 0.002, lengths_of=lambda n: np.full(n, 2))


def rules_by_batch(redis_url: str, config: Config) -> list[set[str]]:
    reports = [json.loads(text) for text in connect(redis_url).hvals(Keys(config.run.name).shards)]
    return [
        {r["rule"] for r in reports if r["batch"] == b} for b in range(1 + max(r["batch"] for r in reports))
    ]


@pytest.mark.parametrize("in_flight", [1, 4])
@pytest.mark.parametrize("reported", [False, True], ids=["before-its-report", "before-it-observed"])
def test_a_coordinator_killed_at_the_end_of_a_cycle_changes_no_rule(
    redis_url: str, in_flight: int, reported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(
        f"killed-{in_flight}-{reported}",
        **{
            "learner.steps": 3,
            "allocation.warmup.cycles": 1,
            "coordinator.lease_s": 0.2,
            "rollout.shards_in_flight": in_flight,
        },
    )
    died = asyncio.Event()
    complete, release = Cycles.complete, Leases.release

    async def until_the_last_shard(self: Cycles, found: dict[str, Any]) -> None:
        if not died.is_set() and found["shard"] == SHARDS - 1:
            while await self._redis.hlen(self._keys.shards) < SHARDS - 1:
                await asyncio.sleep(0.002)
            if reported:
                name = f"{found['batch']}:{found['shard']}"
                await self._redis.hsetnx(self._keys.shards, name, json.dumps(found))
            died.set()
            await asyncio.Event().wait()
        await complete(self, found)

    async def release_of_the_living(self: Leases, name: str) -> None:
        if not (died.is_set() and self._owner == "one"):
            await release(self, name)

    monkeypatch.setattr(Cycles, "complete", until_the_last_shard)
    monkeypatch.setattr(Leases, "release", release_of_the_living)

    async def scenario() -> None:
        learner = threading.Thread(target=Learner(config, redis_url, lambda: 0.0).run, daemon=True)
        learner.start()
        first = asyncio.create_task(coordinate(config, redis_url, prompts(N), FLEET, "one"))
        async with asyncio.timeout(20):
            await died.wait()
            while not first.done():  # redis-py can swallow a cancellation
                first.cancel()
                await asyncio.wait([first], timeout=0.05)
            await coordinate(config, redis_url, prompts(N), FLEET, "two")
            await asyncio.to_thread(learner.join)

    asyncio.run(scenario())
    assert rules_by_batch(redis_url, config) == [{"uniform"}, {"hit_utility"}, {"hit_utility"}]


@pytest.mark.parametrize("seed", range(2))
def test_the_first_batch_of_the_rule_is_the_same_whatever_takes_how_long(redis_url: str, seed: int) -> None:
    config = config_of(f"timing-{seed}", staleness=1)
    chance = random.Random(seed)
    fleet = Fleet(
        seconds_of=lambda request, lengths: chance.random() * 0.02, lengths_of=lambda n: np.full(n, 2)
    )

    async def scenario() -> None:
        work = asyncio.create_task(coordinate(config, redis_url, prompts(N), fleet, "one"))
        async with asyncio.timeout(20):
            await asyncio.to_thread(Learner(config, redis_url, lambda: 0.0).run)
            await work

    asyncio.run(scenario())
    assert rules_by_batch(redis_url, config) == [{"uniform"}] * 3 + [{"hit_utility"}] * 3


def test_the_empirical_prior_of_a_batch_follows_from_the_cycles_it_knows_and_no_others(
    redis_url: str,
) -> None:
    config = config_of("empirical", 1)

    async def scenario(coordinator: Callable[[], Cycles]) -> None:
        one, late = coordinator(), coordinator()
        seen = []
        for cycle in range(4):
            reports = [report(config, cycle, shard) for shard in range(2)]
            for shard, found in enumerate(reports):
                found["successes"] = [cycle % G0, (cycle + shard) % G0]
                await one.complete(found)
            seen += [c for found in reports for c in found["successes"]]
        await late.observe()
        for batch in range(6):
            known = seen[: 4 * max(0, batch - 1)]
            expected = fit_beta(np.array(known), np.full(len(known), G0)) if known else (1.0, 1.0)
            for cycles in (one, late):
                assert set(shared_out(cycles, config, batch, 0, (0, 1)).priors) == {expected}

    play(redis_url, config, scenario, EmpiricalPrior)


def test_a_budget_in_tokens_goes_by_the_lengths_of_the_cycles_that_a_batch_knows(redis_url: str) -> None:
    config = config_of("lengths", **{"allocation.budget": "tokens", "allocation.warmup.enabled": "false"})

    def with_tokens(cycle: int, shard: int, each: int) -> dict[str, Any]:
        told = report(config, cycle, shard)
        return told | {"rounds": [{"successes": told["successes"], "tokens": [each, each], "extra": [4, 4]}]}

    async def scenario(coordinator: Callable[[], Cycles]) -> None:
        one, two = coordinator(), coordinator()
        assert await knows(one, 0)
        assert not await knows(one, 1), "lengths change, so a batch waits for the cycle before it"
        for cycle, each in enumerate((20, 40)):
            for shard in range(SHARDS):
                await one.complete(with_tokens(cycle, shard, each))
        await two.observe()
        for cycles in (one, two):
            means = [lengths and lengths.mean for lengths in (cycles.of(b).lengths for b in range(3))]
            assert means == [None, 10.0, 15.0], "tokens of a prompt's two pre-rollouts"

    play(redis_url, config, scenario)


def test_weights_by_phase_give_every_prompt_a_phase_b(redis_url: str) -> None:
    objective = {"learner.objective.advantage": "rloo", "learner.objective.phase_weight": "unbiased"}
    gate = {"allocation.warmup.enabled": "false"}
    for name, more, least in (("pooled", {}, 0), ("unbiased", objective, 1)):
        config = config_of(name, **gate, **more)

        async def scenario(coordinator: Callable[[], Cycles], config: Config, least: int) -> None:
            cycles = coordinator()
            assert await knows(cycles, 0)
            assert shared_out(cycles, config, 0, 0, (0, G0)).extra.min() == least

        play(redis_url, config, partial(scenario, config=config, least=least), lambda: FixedPrior(0.01, 3.0))
