"""What the barriers of Phase A and of Phase B's rounds cost: tokens per second against one-phase sampling at
the same budget.

    python -m benchmarks.two_phase [--preset tiny] [--shards 24] [--rounds 1 2 4 8] [--repeats 3]
        [--in-flight 4] [--prompts 15]

One vLLM replica and one verifier behind Serve serve all sides in turn. One phase asks for all G samples of a
prompt at once; R rounds ask for G0, wait for the shard's last, divide, and so on R times, with the
coordinator's own code. All keep as many shards in flight, so that one shard's barrier is another's work. A
run has hundreds of shards, so the speed is that of the time in which so many are in flight: from the first
one's end to the last one's start.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from hora_rl.actors.coordinator.allocation import BatchAllocation, allocate_round
from hora_rl.actors.coordinator.calls import policy_calls, verifier_calls
from hora_rl.actors.coordinator.deployment import render_prompts
from hora_rl.actors.coordinator.sampling import Generate, Sampler, Score
from hora_rl.actors.coordinator.shard import Shard, next_round, phase_a, phase_b
from hora_rl.common.config import Config
from hora_rl.common.load import load
from hora_rl.common.types import Completion, SamplingRequest

ONE_PHASE = "one phase"


@dataclass(frozen=True, slots=True)
class Meter:
    """Counts the completion tokens of `generate`, each when its request is answered."""

    generate: Generate
    answered: list[tuple[float, int]] = field(default_factory=list)

    async def __call__(self, request: SamplingRequest) -> list[Completion]:
        completions = await self.generate(request)
        self.answered.append((time.monotonic(), sum(len(c.tokens) for c in completions)))
        return completions

    def tokens_per_second(self, begin: float, end: float) -> float:
        return sum(tokens for at, tokens in self.answered if begin < at <= end) / (end - begin)


RunShard = Callable[[Shard], Awaitable[None]]


def in_rounds(config: Config, generate: Generate, score: Score) -> RunShard:
    """One shard by the configured rule, rounds and stop."""

    async def run(shard: Shard) -> None:
        sample = Sampler(shard, generate, score)
        rows = np.array([p.index for p in shard.prompts])
        batch = BatchAllocation(config.allocation.rule, rows, np.ones(len(rows)), np.ones(len(rows)))
        divide = partial(allocate_round, config.rollout, config.allocation, batch, rows.tolist())
        plan = await phase_a(shard, sample, divide)
        while len(plan.rounds) < config.allocation.under(plan.rule).rounds:
            plan = await next_round(shard, plan, sample, divide)
        async for _ in phase_b(shard, plan, sample):
            pass

    return run


def one_phase(config: Config, generate: Generate, score: Score) -> RunShard:
    """One shard under GRPO: G samples of every prompt, in requests of the same size, without a barrier."""
    most, group = config.rollout.samples_per_request, config.rollout.group_size

    async def run(shard: Shard) -> None:
        async def ask(row: int, first: int) -> None:
            prompt, size = shard.prompts[row], min(most, group - first)
            completions = await generate(
                SamplingRequest(prompt=prompt, n=size, seed=shard.index * 10_000 + row * 100 + first)
            )
            await score(prompt, completions)

        parts = [ask(row, first) for row in range(len(shard.prompts)) for first in range(0, group, most)]
        await asyncio.gather(*parts)

    return run


async def measure_side(run: RunShard, shards: Sequence[Shard], in_flight: int, meter: Meter) -> float:
    """Tokens per second."""
    limit, starts, ends = asyncio.Semaphore(in_flight), list[float](), list[float]()

    async def one(shard: Shard) -> None:
        async with limit:
            starts.append(time.monotonic())
            await run(shard)
            ends.append(time.monotonic())

    await asyncio.gather(*(one(s) for s in shards))
    return meter.tokens_per_second(ends[0], starts[-1])


def shards_of(config: Config, count: int, repeat: int) -> list[Shard]:
    """`count` shards of the data set, other ones in every repeat."""
    data = render_prompts(config)
    n = config.rollout.prompts_per_shard
    rows = [[(repeat * count + s) * n + i for i in range(n)] for s in range(count)]
    return [
        Shard(
            run="benchmark",
            batch=repeat,
            index=s,
            epochs=(0,) * n,
            prompts=tuple(data[row % len(data)] for row in of_shard),
            pre_rollouts=config.rollout.pre_rollouts,
            seed=repeat,
            tokenizer="",
            samples_per_request=config.rollout.samples_per_request,
            priority=s,
        )
        for s, of_shard in enumerate(rows)
    ]


def measure(
    sides: Mapping[str, Config], config: Config, options: argparse.Namespace
) -> dict[str, list[float]]:
    """Tokens per second by side and repeat; sides take turns to be first. `sides` are those in rounds."""
    from ray import serve

    from hora_rl.deploy.app import APP
    from hora_rl.deploy.launch.stack import stack

    result: dict[str, list[float]] = {}

    async def run() -> None:
        handle = serve.get_deployment_handle(config.policy, APP)
        generate = Meter(policy_calls(handle, config, 0, together=config.rollout.samples_per_request))
        score = verifier_calls(serve.get_deployment_handle("verifier", APP), config)
        runs = {ONE_PHASE: one_phase(config, generate, score)}
        runs |= {name: in_rounds(side, generate, score) for name, side in sides.items()}
        for side in runs.values():  # the first requests pay for preparation
            await measure_side(side, shards_of(config, 2, 1000), 1, generate)
        for repeat in range(options.repeats):
            shards = shards_of(config, max(options.in_flight + 1, options.shards), repeat)
            for name in list(runs)[:: -1 if repeat % 2 else 1]:
                speed = await measure_side(runs[name], shards, options.in_flight, generate)
                result.setdefault(name, []).append(speed)

    with (
        tempfile.TemporaryDirectory() as folder,
        stack(config, Path(folder), Console(quiet=True), train=False),
    ):
        asyncio.run(run())
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--shards", type=int, default=24, help="of a side's repeat")
    parser.add_argument("--in-flight", type=int, default=4, help="shards at the same time")
    parser.add_argument("--prompts", type=int, default=15, help="of a shard")
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--stop", default="hit", help="allocation.stop with more than one round")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    per_batch = options.prompts * load(options.preset).rollout.shards
    common = [
        "rollout.group_size=32",
        "rollout.pre_rollouts=8",
        f"rollout.prompts_per_batch={per_batch}",
    ]
    sides = {
        f"R = {n}": load(
            options.preset,
            [*common, f"allocation.rounds={n}", f"allocation.stop={options.stop if n > 1 else 'none'}"],
        )
        for n in options.rounds
    }
    result = measure(sides, load(options.preset, common), options)
    table = Table("side", "tokens/s", "ratio of each repeat", "median")
    for name, speeds in result.items():
        ratios = [speed / base for speed, base in zip(speeds, result[ONE_PHASE], strict=True)]
        table.add_row(
            name,
            f"{statistics.median(speeds):,.0f}",
            " ".join(f"{ratio:.2f}" for ratio in ratios),
            f"{statistics.median(ratios):.2f}",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
