"""Warm-up gate and prior over the cycles of a run, on a real Redis: every coordinator knows the same, and no
more than it may."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hora_rl.allocator import allocate
from hora_rl.allocator.priors import FixedPrior
from hora_rl.common.live.redis import connect
from hora_rl.common.live.state import read_state
from tests.support.cycles import (
    G0,
    Counting,
    G,
    N,
    complete,
    config_of,
    coordinators,
    knows,
    report,
    rows,
    shared_out,
)


@pytest.mark.parametrize("staleness", [0, 1, 2])
async def test_a_batch_knows_the_cycles_up_to_its_bound_no_fewer_and_no_more(
    redis_url: str, staleness: int
) -> None:
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


async def test_every_coordinator_and_one_that_starts_late_goes_by_the_same_terms(redis_url: str) -> None:
    config = config_of("same", **{"allocation.warmup.cycles": 1})
    async with coordinators(redis_url, config, Counting) as coordinator:
        one, two = coordinator(), coordinator()
        for cycle in range(3):
            await asyncio.gather(*(c.complete(report(config, cycle, s)) for s, c in enumerate((one, two))))
        late = coordinator()
        for batch in range(4):
            found = []
            for cycles in (one, two, late):
                assert await knows(cycles, batch)
                found.append(shared_out(cycles, config, batch))
            assert found[0].priors == found[1].priors == found[2].priors
            assert [f.rule for f in found] == ["uniform" if batch == 0 else "hit_utility"] * 3


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
async def test_a_cycle_counts_with_the_mean_of_its_shards_rewards_of_the_name(
    redis_url: str, reward: str
) -> None:
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
