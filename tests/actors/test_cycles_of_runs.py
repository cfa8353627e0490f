"""Gate, priors and budgets over whole simulated runs: they follow from the cycles, not from timing."""

import asyncio
import json
import random
import threading
from typing import Any

import numpy as np
import pytest

from hora_rl.actors.coordinator.cycles import Cycles
from hora_rl.actors.coordinator.leases import Leases
from hora_rl.allocator.priors import FixedPrior
from hora_rl.allocator.priors.empirical import EmpiricalPrior, fit_beta
from hora_rl.common.config import Config
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from tests.support.coordination import begun, killed, to_the_end
from tests.support.cycles import G0, SHARDS, N, config_of, coordinators, knows, report, shared_out
from tests.support.simulated import Fleet, Learner, coordinate, prompts

FLEET = Fleet(lambda request, lengths: 0.002)


def rules_by_batch(redis_url: str, config: Config) -> list[set[str]]:
    reports = [json.loads(text) for text in connect(redis_url).hvals(Keys(config.run.name).shards)]
    return [
        {r["rule"] for r in reports if r["batch"] == b} for b in range(1 + max(r["batch"] for r in reports))
    ]


@pytest.mark.parametrize("in_flight", [1, 4])
@pytest.mark.parametrize("reported", [False, True], ids=["before-its-report", "before-it-observed"])
async def test_a_coordinator_killed_at_the_end_of_a_cycle_changes_no_rule(
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
    learner = threading.Thread(target=Learner(config, redis_url, lambda: 0.0).run, daemon=True)
    learner.start()
    first = begun(config, redis_url, FLEET, data=prompts(N))
    async with asyncio.timeout(20):
        await died.wait()
        await killed(first)
        await coordinate(config, redis_url, prompts(N), FLEET, "two")
        await asyncio.to_thread(learner.join)
    assert rules_by_batch(redis_url, config) == [{"uniform"}, {"hit_utility"}, {"hit_utility"}]


@pytest.mark.parametrize("seed", range(2))
async def test_the_first_batch_of_the_rule_is_the_same_whatever_takes_how_long(
    redis_url: str, seed: int
) -> None:
    config = config_of(f"timing-{seed}", staleness=1)
    chance = random.Random(seed)
    fleet = Fleet(lambda request, lengths: chance.random() * 0.02)
    await to_the_end(config, redis_url, fleet, data=prompts(N))
    assert rules_by_batch(redis_url, config) == [{"uniform"}] * 3 + [{"hit_utility"}] * 3


async def test_the_empirical_prior_of_a_batch_follows_from_the_cycles_it_knows_and_no_others(
    redis_url: str,
) -> None:
    config = config_of("empirical", 1)
    async with coordinators(redis_url, config, EmpiricalPrior) as coordinator:
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
                assert set(shared_out(cycles, config, batch).priors) == {expected}


async def test_a_budget_in_tokens_goes_by_the_lengths_of_the_cycles_that_a_batch_knows(
    redis_url: str,
) -> None:
    config = config_of("lengths", **{"allocation.budget": "tokens", "allocation.warmup.enabled": "false"})

    def with_tokens(cycle: int, shard: int, each: int) -> dict[str, Any]:
        told = report(config, cycle, shard)
        return told | {"rounds": [{"successes": told["successes"], "tokens": [each, each], "extra": [4, 4]}]}

    async with coordinators(redis_url, config) as coordinator:
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


PHASE_WEIGHT = {"learner.objective.advantage": "rloo", "learner.objective.phase_weight": "unbiased"}


@pytest.mark.parametrize(("more", "least"), [({}, 0), (PHASE_WEIGHT, 1)], ids=["pooled", "unbiased"])
async def test_weights_by_phase_give_every_prompt_a_phase_b(
    redis_url: str, more: dict[str, str], least: int
) -> None:
    config = config_of(f"phase-b-{least}", **{"allocation.warmup.enabled": "false", **more})
    async with coordinators(redis_url, config, lambda: FixedPrior(0.01, 3.0)) as coordinator:
        cycles = coordinator()
        assert await knows(cycles, 0)
        assert shared_out(cycles, config, 0, 0, (0, G0)).extra.min() == least
