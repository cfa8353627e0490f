"""Shard reports of a small run, and coordinators that observe them."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from hora_rl.actors.coordinator.allocation import allocate_round
from hora_rl.actors.coordinator.cycles import Cycles
from hora_rl.actors.coordinator.shard import Allocation, PhaseCounts
from hora_rl.allocator.posterior import Float, Int
from hora_rl.allocator.priors.base import FixedPrior, State
from hora_rl.common.config import Config
from hora_rl.common.data.prompt_order import Mixture, mixed_rows
from hora_rl.common.live.redis import connect_async
from hora_rl.common.load import load

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


def shared_out(
    cycles: Cycles, config: Config, batch: int, shard: int = 0, c: tuple[int, ...] = (0, 1)
) -> Allocation:
    return allocate_round(config, cycles.of(batch), rows(config, batch, shard), (), PhaseCounts(c, ()))
