"""What a barrier where nothing is decided costs: seconds of the rollouts of one synchronous batch under
`uniform`.

    python -m benchmarks.synchronous_step [--batches 20]

With `max_staleness` 0 a batch begins when the one before is trained, so no other work fills a barrier. One
vLLM replica and one verifier behind Serve sample the same batches twice, in turn: once with both phases'
rollouts asked for at once, as a coordinator does under `uniform`, and once with Phase B after the last
rollout of Phase A.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from actors.calls import generator_calls, verifier_calls
from actors.coordinator.allocation import decided, divide_round
from actors.coordinator.cycles import BatchAllocation
from actors.coordinator.sampling import Generate, Sampler, Score, begun
from actors.coordinator.shard import Draw, Shard, phase_a, phase_b
from benchmarks.two_phase import shards_of
from common.config import Config
from common.load import load

SETTINGS = ["rollout.prompts_per_batch=16", "rollout.group_size=8", "rollout.pre_rollouts=2"]
WARM_UP = 1000


def uniform(shard: Shard) -> BatchAllocation:
    prompts = np.array([p.index for p in shard.prompts])
    return BatchAllocation("uniform", prompts, np.ones(len(prompts)), np.ones(len(prompts)))


async def one_shard(config: Config, shard: Shard, generate: Generate, score: Score, ahead: bool) -> int:
    """Rollouts of a shard, both phases begun at once or not."""
    batch = uniform(shard)
    draws: list[Draw] = decided(config, batch) if ahead else []
    async with begun(Sampler(shard, generate, score), draws) as sample:
        plan = await phase_a(shard, sample, partial(divide_round, config, batch, batch.prompts.tolist()))
        return sum([g.size async for g in phase_b(shard, plan, sample)])


def measure(config: Config, batches: int) -> dict[bool, list[float]]:
    """Seconds of each batch, by whether both phases were begun at once."""
    from ray import serve

    from deploy.app import APP
    from deploy.launch.stack import stack

    found: dict[bool, list[float]] = {True: [], False: []}

    async def seconds(shards: Sequence[Shard], generate: Generate, score: Score, ahead: bool) -> float:
        began = time.monotonic()
        sizes = await asyncio.gather(*(one_shard(config, s, generate, score, ahead) for s in shards))
        assert sum(sizes) == config.rollout.prompts_per_batch * config.rollout.group_size
        return time.monotonic() - began

    async def run() -> None:
        generate = generator_calls(serve.get_deployment_handle("generator", APP), config, 0)
        score = verifier_calls(serve.get_deployment_handle("verifier", APP), config)
        for ahead in (True, False):
            await seconds(shards_of(config, config.rollout.shards, WARM_UP), generate, score, ahead)
        for batch in range(batches):
            shards = shards_of(config, config.rollout.shards, batch)
            for ahead in sorted(found, reverse=batch % 2 == 1):
                found[ahead].append(await seconds(shards, generate, score, ahead))

    with (
        tempfile.TemporaryDirectory() as folder,
        stack(config, Path(folder), Console(quiet=True), train=False),
    ):
        asyncio.run(run())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--batches", type=int, default=20)
    options = parser.parse_args()
    found = measure(load(options.preset, SETTINGS), options.batches)
    ratios = [at_once / barrier for at_once, barrier in zip(found[True], found[False], strict=True)]
    table = Table("both phases", "seconds of a batch, median", "least", "most")
    for ahead, name in ((False, "one after the other"), (True, "at once")):
        values = found[ahead]
        table.add_row(name, f"{statistics.median(values):.2f}", f"{min(values):.2f}", f"{max(values):.2f}")
    Console().print(table)
    print(
        f"ratio of the same batch: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to "
        f"{max(ratios):.2f}"
    )


if __name__ == "__main__":
    main()
