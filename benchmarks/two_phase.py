"""What HORA's barrier between its two phases costs: tokens per second against one-phase GRPO at the same budget.

    python -m benchmarks.two_phase [--preset tiny] [--shards 32] [--rounds 3]

One vLLM replica and one verifier behind Serve serve both sides in turn. GRPO asks for all G samples of a prompt at once;
HORA asks for G0, waits for the shard's last, allocates, and asks for the rest. Both keep as many shards in flight: four,
so that one shard's barrier is another's work, and one, where nothing fills the gap. A run goes on for hundreds of shards;
with few of them the last one's barrier, which no other shard follows, is most of what would be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from actors.calls import generator_calls, verifier_calls
from actors.coordinator.deployment import render_prompts
from actors.coordinator.sampling import Generate, Sampler, Score
from actors.coordinator.shard import Allocation, Shard, phase_a, phase_b
from allocator import allocate
from common.config import Config
from common.load import load
from common.prompts import load_tokenizer
from common.types import SamplingRequest

RunShard = Callable[[Shard], Awaitable[int]]
IN_FLIGHT = (4, 1)


def two_phases(config: Config, generate: Generate, score: Score) -> RunShard:
    """Tokens of one shard under HORA."""
    rollout = config.rollout

    def divide(successes: NDArray[np.int64]) -> Allocation:
        extra = allocate(
            successes, rollout.pre_rollouts, rollout.shard_budget, prior=(1.0, 1.0), rule="hit_utility"
        )
        return Allocation(extra=extra, rule="hit_utility", priors=((1.0, 1.0),) * len(successes))

    async def run(shard: Shard) -> int:
        sample = Sampler(shard, generate, score)
        plan = await phase_a(shard, sample, divide)
        return sum([g.tokens async for g in phase_b(shard, plan, sample)])

    return run  # fmt: skip


def one_phase(config: Config, generate: Generate, score: Score) -> RunShard:
    """Tokens of one shard under GRPO: G samples of every prompt, in requests of the same size, without a barrier."""
    most, group = config.rollout.samples_per_request, config.rollout.group_size

    async def run(shard: Shard) -> int:
        async def ask(row: int, first: int) -> int:
            prompt, size = shard.prompts[row], min(most, group - first)
            completions = await generate(
                SamplingRequest(prompt=prompt, n=size, seed=shard.index * 10_000 + row * 100 + first)
            )
            await score(prompt, completions)
            return sum(len(c.tokens) for c in completions)

        parts = [ask(row, first) for row in range(len(shard.prompts)) for first in range(0, group, most)]
        return sum(await asyncio.gather(*parts))

    return run  # fmt: skip


async def tokens_per_second(run: RunShard, shards: Sequence[Shard], in_flight: int) -> float:
    limit = asyncio.Semaphore(in_flight)

    async def one(shard: Shard) -> int:
        async with limit:
            return await run(shard)

    began = time.monotonic()
    tokens = sum(await asyncio.gather(*(one(s) for s in shards)))
    return tokens / (time.monotonic() - began)


def shards_of(config: Config, count: int, round_: int) -> list[Shard]:
    """`count` shards of the data set, other ones in every round."""
    data = render_prompts(config, load_tokenizer(config.model.path))
    n = config.rollout.prompts_per_shard
    rows = [[(round_ * count + s) * n + i for i in range(n)] for s in range(count)]
    return [
        Shard(
            run="benchmark",
            batch=round_,
            index=s,
            epochs=(0,) * n,
            prompts=tuple(data[row % len(data)] for row in of_shard),
            pre_rollouts=config.rollout.pre_rollouts,
            seed=round_,
            tokenizer="",
            samples_per_request=config.rollout.samples_per_request,
        )
        for s, of_shard in enumerate(rows)
    ]


def measure(config: Config, count: int, rounds: int) -> dict[tuple[int, str], list[float]]:
    """(shards in flight, side) -> tokens per second of each round; sides take turns to be first."""
    from ray import serve

    from deploy.app import APP
    from deploy.launch.local import stack

    found: dict[tuple[int, str], list[float]] = {}

    async def run() -> None:
        generate = generator_calls(serve.get_deployment_handle("generator", APP), config, 0)
        score = verifier_calls(serve.get_deployment_handle("verifier", APP), config)
        sides: dict[str, Any] = {
            "GRPO": one_phase(config, generate, score),
            "HORA": two_phases(config, generate, score),
        }
        for side in sides.values():
            await tokens_per_second(
                side, shards_of(config, 2, 1000), 2
            )  # the first requests pay for preparation
        for round_ in range(rounds):
            for in_flight in IN_FLIGHT:
                shards = shards_of(config, count * in_flight // max(IN_FLIGHT), round_)
                for name in sorted(sides, reverse=round_ % 2 == 1):
                    rate = await tokens_per_second(sides[name], shards, in_flight)
                    found.setdefault((in_flight, name), []).append(rate)

    with (
        tempfile.TemporaryDirectory() as folder,
        stack(config, Path(folder), Console(quiet=True), train=False),
    ):
        asyncio.run(run())
    return found  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="tiny")
    parser.add_argument(
        "--shards", type=int, default=32, help="of a side's round with four in flight; a quarter with one"
    )
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    config = load(options.preset, ["rollout.group_size=32", "rollout.pre_rollouts=8"])
    found = measure(config, options.shards, options.rounds)
    table = Table(
        "shards in flight", "GRPO tokens/s", "HORA tokens/s", "ratio of each round", "median", "target"
    )
    for in_flight, target in zip(IN_FLIGHT, ("at least 0.95", ""), strict=True):
        grpo, hora = found[in_flight, "GRPO"], found[in_flight, "HORA"]
        ratios = [h / g for g, h in zip(grpo, hora, strict=True)]
        table.add_row(
            str(in_flight),
            f"{statistics.median(grpo):,.0f}",
            f"{statistics.median(hora):,.0f}",
            " ".join(f"{ratio:.2f}" for ratio in ratios),
            f"{statistics.median(ratios):.2f}",
            target,
        )
    Console().print(table)


if __name__ == "__main__":
    main()
