"""Warm-up gate, prior and rests over the cycles of a run, on a real Redis: what batches know."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from hora_rl.actors.coordinator.allocation import Cycles, WarmUpGate, allocate_round
from hora_rl.actors.coordinator.shard import Allocation
from hora_rl.actors.coordinator.store import Leases
from hora_rl.allocator import allocate
from hora_rl.allocator.posterior import Float, Int
from hora_rl.allocator.priors.base import FixedPrior
from hora_rl.common.config import Config
from hora_rl.common.data.prompt_order import Mixture, mixed_rows
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect, connect_async
from hora_rl.common.live.state import read_state
from tests.support.coordination import begun, killed
from tests.support.coordination import config_of as small_run
from tests.support.simulated import Fleet, Learner, coordinate, prompts

N, SHARDS, GAMMA, G, G0 = 6, 2, 4, 6, 2
FLEET = Fleet(lambda request, lengths: 0.002)


def config_of(name: str, staleness: int = 0, **more: Any) -> Config:
    shape = {"rollout.prompts_per_batch": GAMMA, "rollout.group_size": G, "rollout.shards": SHARDS}
    warmup = {"allocation.warmup.enabled": "true", "allocation.warmup.cycles": 2}
    return small_run(name, staleness, **{**shape, **warmup, **more})


class Counting:
    """A prior that predicts Beta(1 + how often a prompt was met, 1 + 20 times its successes)."""

    name, learns = "counting", True

    def __init__(self) -> None:
        self.met, self.hits = np.zeros(N), np.zeros(N)

    def predict(self, prompts: Int) -> tuple[Float, Float]:
        return 1.0 + self.met[prompts], 1.0 + 20 * self.hits[prompts]

    def update(self, prompts: Int, successes: Int, trials: int) -> None:
        assert trials == G0
        np.add.at(self.met, prompts, 1)
        np.add.at(self.hits, prompts, successes)


def rows(config: Config, batch: int, shard: int) -> list[int]:
    places = mixed_rows(batch, GAMMA, Mixture((N,)), config.run.seed, config.data.shuffle)
    return [row for _, row in places][shard * 2 : shard * 2 + 2]


def report(config: Config, batch: int, shard: int) -> dict[str, Any]:
    rewards, prompts = {"format": 1.0, "accuracy": 0.0}, rows(config, batch, shard)
    return {"batch": batch, "shard": shard, "rewards": rewards, "prompts": prompts, "successes": [1, 2]}


@asynccontextmanager
async def coordinators(
    redis_url: str, config: Config, prior: Callable[[], Any] = FixedPrior
) -> AsyncIterator[Callable[[], Cycles]]:
    """A function that makes one more coordinator's `Cycles`."""
    async with connect_async(redis_url) as redis:
        yield lambda: Cycles(redis, config, prior(), Mixture((N,)))


async def complete(cycles: Cycles, config: Config, cycle: int) -> None:
    for shard in range(SHARDS):
        await cycles.complete(report(config, cycle, shard))


async def knows(cycles: Cycles, batch: int) -> bool:
    await cycles.observe()
    return cycles.known(batch)


def shared_out(cycles: Cycles, config: Config, batch: int, shard: int = 0, c: tuple = (0, 1)) -> Allocation:
    order = rows(config, batch, shard)
    return allocate_round(config.rollout, config.allocation, cycles.of(batch), order, (), c)


@pytest.mark.parametrize("staleness", [0, 1, 2])
async def test_a_batch_knows_exactly_the_cycles_up_to_its_bound(redis_url: str, staleness: int) -> None:
    config = config_of(f"bound-{staleness}", staleness)
    async with coordinators(redis_url, config, Counting) as coordinator:
        one, two = coordinator(), coordinator()
        for cycle in range(5):
            first_unknown = cycle + staleness + 1
            assert await knows(one, first_unknown - 1)
            assert not await knows(one, first_unknown)
            await one.complete(report(config, cycle, 0))
            assert not await knows(one, first_unknown), "half of the cycle is missing"
            await two.complete(report(config, cycle, 1))
            assert await knows(one, first_unknown)
        met = np.zeros(N)
        for batch in range(5 + staleness):  # long after: the terms are those of the batch, not of the moment
            expected = 1 + met[rows(config, batch, 1)]
            found = shared_out(one, config, batch, 1)
            assert [alpha for alpha, _ in found.priors] == expected.tolist()
            if batch >= staleness:
                met[rows(config, batch - staleness, 0) + rows(config, batch - staleness, 1)] += 1


async def test_a_learned_prior_shapes_the_allocation(redis_url: str) -> None:
    config = config_of("learned", **{"allocation.warmup.enabled": "false", "run.seed": 16})
    async with coordinators(redis_url, config, Counting) as coordinator:
        cycles, c, budget = coordinator(), [1, 1], 2 * (G - G0)
        await complete(cycles, config, 0)
        assert await knows(cycles, 1)
        found = shared_out(cycles, config, 1, 1, (1, 1))
        assert found.priors == ((2, 21), (2, 41)), "both were met once, with 1 and with 2 successes"
        assert found.extra.tolist() == allocate(c, G0, budget, prior=([2, 2], [21, 41])).tolist()
        assert found.extra.tolist() != allocate(c, G0, budget).tolist()


@pytest.mark.parametrize("prior", [FixedPrior, Counting])
async def test_no_group_grows_beyond_the_cap(redis_url: str, prior: Callable[[], Any]) -> None:
    config = config_of("cap", **{"allocation.max_group_size": G, "allocation.warmup.enabled": "false"})
    async with coordinators(redis_url, config, prior) as coordinator:
        cycles, c = coordinator(), [0, 2]
        assert await knows(cycles, 0)
        found = shared_out(cycles, config, 0, 0, (0, 2))
        assert (G0 + found.extra).tolist() == [G, G]
        assert (G0 + allocate(c, G0, 2 * (G - G0))).max() > G


async def test_sizes_as_if_are_those_of_the_other_rule_once_the_gate_is_open(redis_url: str) -> None:
    more = {"allocation.rule": "uniform", "learner.objective.group_weight": "{as_if: hit_utility}"}
    config = config_of("as-if", **more, **{"allocation.warmup.cycles": 1})
    async with coordinators(redis_url, config) as coordinator:
        cycles = coordinator()
        assert await knows(cycles, 0)
        assert shared_out(cycles, config, 0).sizes_as_if == (G, G)
        await complete(cycles, config, 0)
        assert await knows(cycles, 1)
        found = shared_out(cycles, config, 1, 0, (0, 2))
        assert found.extra.tolist() == [G - G0, G - G0]
        assert found.sizes_as_if == tuple((G0 + allocate([0, 2], G0, 2 * (G - G0))).tolist()) != (G, G)


@pytest.mark.parametrize("reward", ["format", "accuracy"])
async def test_a_cycle_counts_with_the_mean_reward_of_its_shards(redis_url: str, reward: str) -> None:
    warmup = {"allocation.warmup.cycles": 1, "allocation.warmup.format_reward": 0.8}
    config = config_of(f"mean-{reward}", **warmup, **{"allocation.warmup.reward": reward})
    async with coordinators(redis_url, config) as coordinator:
        cycles = coordinator()
        for cycle, means in enumerate([(0.7, 0.8), (0.7, 1.0)]):
            for shard, mean in enumerate(means):
                rewards = {"format": 1.0, "accuracy": 1.0, reward: mean}
                await cycles.complete(report(config, cycle, shard) | {"rewards": rewards})
        assert [cycles.of(b).rule for b in range(3)] == ["uniform", "uniform", "hit_utility"]
    state = read_state(connect(redis_url), config.run.name)
    assert (state.gate_open, state.gate_seen, state.gate_mean) == (True, 2, pytest.approx(0.85)), "for views"


async def test_once_no_cycle_can_change_anything_no_batch_waits_for_one(redis_url: str) -> None:
    config = config_of("settled", staleness=1, **{"allocation.warmup.cycles": 1})
    async with coordinators(redis_url, config) as coordinator:
        cycles = coordinator()
        assert not await knows(cycles, 2)
        await complete(cycles, config, 0)
        assert await knows(cycles, 5), "the gate is open for good and the fixed prior learns nothing"
        assert cycles.of(5).rule == "hit_utility"
        assert cycles.of(1).rule == "uniform", "and yet batch 1 knows no cycle"


async def test_a_staleness_beyond_the_run_prepares_no_more_than_its_batches(redis_url: str) -> None:
    config = config_of("far-ahead", staleness=10**15)
    async with coordinators(redis_url, config) as coordinator:
        assert await knows(coordinator(), config.learner.steps - 1)


def rules_by_batch(redis_url: str, config: Config) -> list[set[str]]:
    reports = [json.loads(text) for text in connect(redis_url).hvals(Keys(config.run.name).shards)]
    last = max(r["batch"] for r in reports)
    return [{r["rule"] for r in reports if r["batch"] == b} for b in range(last + 1)]


async def test_with_rests_every_batch_waits_for_its_cycles_and_views_are_told_how_many_rest(
    redis_url: str,
) -> None:
    more = {"allocation.warmup.enabled": "false", "data.rest": "[solved]", "rollout.prompts_per_batch": 2}
    config = config_of("rests", staleness=1, **more)

    def solved(cycles: Cycles, batch: int, shard: int) -> dict[str, Any]:
        rows = [cycles.rows(batch)[shard][1]]
        return report(config, batch, shard) | {"prompts": rows, "successes": [G0], "trials": G0}

    async with coordinators(redis_url, config) as coordinator:
        cycles, late = coordinator(), coordinator()
        for cycle in range(4):
            assert await knows(cycles, cycle + 1)
            assert not await knows(cycles, cycle + 2)
            for shard in range(SHARDS):
                await cycles.complete(solved(cycles, cycle, shard))
        assert read_state(connect(redis_url), config.run.name).resting == 2, "solved in both epochs"
        await late.observe()
        assert [late.rows(b) for b in range(6)] == [cycles.rows(b) for b in range(6)]


@pytest.mark.parametrize("in_flight", [1, 4])
@pytest.mark.parametrize("reported", [False, True], ids=["before-its-report", "before-it-observed"])
async def test_a_coordinator_killed_at_the_end_of_a_cycle_changes_no_rule(
    redis_url: str, in_flight: int, reported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"learner.steps": 3, "allocation.warmup.cycles": 1}
    config = config_of(f"killed-{in_flight}-{reported}", **more, **{"rollout.shards_in_flight": in_flight})
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


GOOD, BAD = 0.9, 0.8


def opened(gate: WarmUpGate, means: list[float]) -> list[bool]:
    """Whether the gate is open after each of the cycles."""
    found = []
    for mean in means:
        gate.observe(mean)
        found.append(gate.open)
    return found


@pytest.mark.parametrize(
    ("means", "cycle"),
    [
        ([GOOD, GOOD, GOOD], 3),
        ([GOOD, GOOD, BAD, GOOD, GOOD, GOOD], 6),
        ([BAD, GOOD, GOOD, GOOD, BAD, BAD], 4),
        ([0.85, 0.85, 0.85], 3),
        ([0.85 - 1e-6, GOOD, GOOD, 0.85 - 1e-6, GOOD], None),
        ([GOOD, BAD] * 5, None),
    ],
)
def test_the_gate_opens_after_three_good_cycles_and_stays_open(means: list[float], cycle: int | None) -> None:
    first = len(means) + 1 if cycle is None else cycle
    assert opened(WarmUpGate(), means) == [i >= first for i in range(1, len(means) + 1)]


def test_a_mean_of_shards_that_is_exactly_the_threshold_counts_however_it_rounds() -> None:
    rounded = float(np.mean([99 / 120, 98 / 120, 98 / 120, 113 / 120]))  # 408 of 480 are 0.85
    assert rounded < 0.85
    assert opened(WarmUpGate(), [rounded] * 3)[-1]
    one_less = float(np.mean([99 / 120, 98 / 120, 98 / 120, 112 / 120]))
    assert not opened(WarmUpGate(), [one_less] * 3)[-1]


def test_a_gate_that_is_off_is_open_from_the_start_and_takes_only_means_of_rewards() -> None:
    gate = WarmUpGate(enabled=False)
    assert gate.open
    assert opened(gate, [0.0]) == [True]
    for mean in (float("inf"), float("nan")):
        with pytest.raises(ValueError, match="mean must be finite"):
            gate.observe(mean)
