"""Warm-up gate and prior over the cycles of a run, on a real Redis: every coordinator knows the same, and no
more than it may."""

import asyncio
import json
import random
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from actors.coordinator.allocation import divide_round
from actors.coordinator.cycles import Cycles
from actors.coordinator.leases import Leases
from actors.coordinator.shard import Allocation, Found
from allocator import allocate
from allocator.priors.base import Float, Int, State
from allocator.priors.empirical import EmpiricalPrior, fit_beta
from allocator.priors.fixed import FixedPrior
from common.config import Config
from common.errors import RunError
from common.keys import Keys
from common.load import load
from common.order import Mixture, batch_rows
from common.redis import connect, connect_async
from common.state import read_state
from tests.support.simulated import Fleet, Learner, coordinate, prompts

N, SHARDS, GAMMA, G, G0 = 6, 2, 4, 6, 2


def config_of(name: str, staleness: int = 0, **more: Any) -> Config:
    settings = {
        "run.name": name,
        "rollout.prompts_per_batch": GAMMA,
        "rollout.group_size": G,
        "rollout.pre_rollouts": G0,
        "rollout.shards": SHARDS,
        "rollout.max_staleness": staleness,
        "allocation.warmup.cycles": 2,
        "learner.steps": 6,
        **more,
    }
    return load("tiny", [f"{k}={v}" for k, v in settings.items()])


class Counting:
    """A prior that predicts Beta(1 + how often a prompt was met, 1 + 20 times its successes)."""

    name = "counting"
    learns = True

    def __init__(self) -> None:
        self.met, self.hits = np.zeros(N), np.zeros(N)

    def predict(self, prompts: Int) -> tuple[Float, Float]:
        return 1.0 + self.met[prompts], 1.0 + 20 * self.hits[prompts]

    def update(self, prompts: Int, successes: Int, trials: int) -> None:
        assert trials == G0
        np.add.at(self.met, prompts, 1)
        np.add.at(self.hits, prompts, successes)

    def state_dict(self) -> State:
        raise NotImplementedError

    def load_state_dict(self, state: State) -> None:
        raise NotImplementedError


def rows(config: Config, batch: int, shard: int) -> list[int]:
    places = batch_rows(batch, GAMMA, N, config.run.seed, config.data.shuffle)
    return [row for _, row in places][shard * 2 : shard * 2 + 2]


def report(config: Config, batch: int, shard: int, format: float = 1.0) -> dict[str, Any]:
    return {
        "batch": batch,
        "shard": shard,
        "rewards": {"format": format, "accuracy": 0.0},
        "prompts": rows(config, batch, shard),
        "successes": [1, 2],
    }


Scenario = Callable[[Callable[[], Cycles]], Awaitable[None]]


def play(redis_url: str, config: Config, scenario: Scenario, prior: Callable[[], Any] = FixedPrior) -> None:
    """`scenario` gets a function that makes one more coordinator's `Cycles`."""

    async def run() -> None:
        redis = connect_async(redis_url)
        try:
            await scenario(lambda: Cycles(redis, config, prior(), Mixture((N,))))
        finally:
            await redis.aclose()

    asyncio.run(run())


async def knows(cycles: Cycles, batch: int) -> bool:
    await cycles.observe()
    return cycles.known(batch)


def shared_out(cycles: Cycles, config: Config, batch: int, shard: int, c: tuple[int, int]) -> Allocation:
    return divide_round(config, cycles.of(batch), rows(config, batch, shard), (), Found(c, ()))


def rule(cycles: Cycles, config: Config, batch: int) -> str:
    return shared_out(cycles, config, batch, 0, (0, 1)).rule


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_a_batch_knows_the_cycles_up_to_its_bound_no_fewer_and_no_more(
    redis_url: str, staleness: int
) -> None:
    config = config_of(f"bound-{staleness}", staleness)

    async def scenario(coordinator: Callable[[], Cycles]) -> None:
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
            found = shared_out(one, config, batch, 1, (0, 1))
            assert [alpha for alpha, _ in found.priors] == expected.tolist()
            if batch >= staleness:
                met[rows(config, batch - staleness, 0) + rows(config, batch - staleness, 1)] += 1

    play(redis_url, config, scenario, Counting)


def test_every_coordinator_and_one_that_starts_late_goes_by_the_same_terms(redis_url: str) -> None:
    config = config_of("same", **{"allocation.warmup.cycles": 1})

    async def scenario(coordinator: Callable[[], Cycles]) -> None:
        one, two = coordinator(), coordinator()
        for cycle in range(3):
            await asyncio.gather(*(c.complete(report(config, cycle, s)) for s, c in enumerate((one, two))))
        late = coordinator()
        for batch in range(4):
            found = []
            for cycles in (one, two, late):
                assert await knows(cycles, batch)
                found.append(shared_out(cycles, config, batch, 0, (0, 1)))
            assert found[0].priors == found[1].priors == found[2].priors
            assert [f.rule for f in found] == ["uniform" if batch == 0 else "hit_utility"] * 3

    play(redis_url, config, scenario, Counting)


def test_a_learned_prior_shapes_the_allocation(redis_url: str) -> None:
    config = config_of("learned", **{"allocation.warmup.enabled": "false", "run.seed": 16})

    async def scenario(coordinator: Callable[[], Cycles]) -> None:
        cycles, c, budget = coordinator(), np.array([1, 1]), 2 * (G - G0)
        for shard in range(SHARDS):
            await cycles.complete(report(config, 0, shard))
        assert await knows(cycles, 1)
        found = divide_round(config, cycles.of(1), rows(config, 1, 1), (), Found(tuple(c.tolist()), ()))
        assert found.priors == ((2, 21), (2, 41)), "both were met once, with 1 and with 2 successes"
        assert found.extra.tolist() == allocate(c, G0, budget, prior=([2, 2], [21, 41])).tolist()
        assert found.extra.tolist() != allocate(c, G0, budget).tolist()

    play(redis_url, config, scenario, Counting)


@pytest.mark.parametrize("prior", [FixedPrior, Counting])
def test_no_group_grows_beyond_the_cap(redis_url: str, prior: Callable[[], Any]) -> None:
    config = config_of("cap", **{"allocation.max_group_size": G, "allocation.warmup.enabled": "false"})

    async def scenario(coordinator: Callable[[], Cycles]) -> None:
        cycles, c = coordinator(), np.array([0, 2])
        assert await knows(cycles, 0)
        found = divide_round(config, cycles.of(0), rows(config, 0, 0), (), Found(tuple(c.tolist()), ()))
        assert (G0 + found.extra).tolist() == [G, G]
        assert (G0 + allocate(c, G0, 2 * (G - G0))).max() > G

    play(redis_url, config, scenario, prior)


def test_sizes_as_if_are_those_of_the_other_rule_once_the_gate_is_open(redis_url: str) -> None:
    more = {"allocation.rule": "uniform", "learner.objective.group_weight": "{as_if: hit_utility}"}
    config = config_of("as-if", **more, **{"allocation.warmup.cycles": 1})

    async def scenario(coordinator: Callable[[], Cycles]) -> None:
        cycles = coordinator()
        assert await knows(cycles, 0)
        assert shared_out(cycles, config, 0, 0, (0, 1)).sizes_as_if == (G, G)
        for shard in range(SHARDS):
            await cycles.complete(report(config, 0, shard))
        assert await knows(cycles, 1)
        found = shared_out(cycles, config, 1, 0, (0, 2))
        assert found.extra.tolist() == [G - G0, G - G0]
        assert found.sizes_as_if == tuple((G0 + allocate([0, 2], G0, 2 * (G - G0))).tolist()) != (G, G)

    play(redis_url, config, scenario)


def test_a_cycle_counts_with_the_mean_of_its_shards_formats(redis_url: str) -> None:
    config = config_of("mean", **{"allocation.warmup.cycles": 1, "allocation.warmup.format_reward": 0.8})

    async def scenario(coordinator: Callable[[], Cycles]) -> None:
        cycles = coordinator()
        for cycle, formats in enumerate([(0.7, 0.8), (0.7, 1.0)]):
            for shard, format in enumerate(formats):
                await cycles.complete(report(config, cycle, shard, format))
        assert [rule(cycles, config, b) for b in range(3)] == ["uniform", "uniform", "hit_utility"]

    play(redis_url, config, scenario)
    state = read_state(connect(redis_url), config.run.name)
    assert (state.gate_open, state.gate_seen, state.gate_mean) == (True, 2, pytest.approx(0.85)), "for views"


def test_the_gate_watches_the_reward_that_is_named(redis_url: str) -> None:
    warmup = {"allocation.warmup.cycles": 1, "allocation.warmup.reward": "accuracy"}
    config = config_of("named", **warmup)

    async def scenario(coordinator: Callable[[], Cycles]) -> None:
        cycles = coordinator()
        for cycle, accuracy in enumerate((0.0, 0.9)):
            for shard in range(SHARDS):
                told = report(config, cycle, shard) | {"rewards": {"format": 1.0, "accuracy": accuracy}}
                await cycles.complete(told)
        assert [rule(cycles, config, b) for b in range(3)] == ["uniform", "uniform", "hit_utility"]

    play(redis_url, config, scenario)


def test_reports_of_an_older_version_are_refused_in_one_line(redis_url: str) -> None:
    config = config_of("older", **{"allocation.warmup.cycles": 1})

    async def scenario(coordinator: Callable[[], Cycles]) -> None:
        cycles = coordinator()
        for shard in range(SHARDS):
            told = report(config, 0, shard)
            await cycles.complete({"format": 1.0, **{k: v for k, v in told.items() if k != "rewards"}})

    with pytest.raises(RunError, match=r"reports of batch 0 are of an older hora .* another run\.name"):
        play(redis_url, config, scenario)


def test_once_no_cycle_can_change_anything_no_batch_waits_for_one(redis_url: str) -> None:
    config = config_of("settled", staleness=1, **{"allocation.warmup.cycles": 1})

    async def scenario(coordinator: Callable[[], Cycles]) -> None:
        cycles = coordinator()
        assert not await knows(cycles, 2)
        for shard in range(SHARDS):
            await cycles.complete(report(config, 0, shard))
        assert await knows(cycles, 5), "the gate is open for good and the fixed prior learns nothing"
        assert rule(cycles, config, 5) == "hit_utility"
        assert rule(cycles, config, 1) == "uniform", "and yet batch 1 knows no cycle"

    play(redis_url, config, scenario)


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


def test_reports_without_lengths_end_a_run_with_a_budget_in_tokens_in_one_line(redis_url: str) -> None:
    config = config_of("no-lengths", **{"allocation.budget": "tokens", "allocation.warmup.enabled": "false"})

    async def scenario(coordinator: Callable[[], Cycles]) -> None:
        cycles = coordinator()
        await cycles.complete(report(config, 0, 0))
        with pytest.raises(RunError, match="batch 0 are of an older hora and have none"):
            await cycles.complete(report(config, 0, 1))

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
