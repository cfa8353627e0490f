"""What the barriers of Phase A and of Phase B's rounds cost: tokens per second against one-phase sampling at
the same budget.

    python -m benchmarks.two_phase [--preset tiny] [--shards 32] [--rounds 1 2 4 8] [--repeats 3]

One vLLM replica and one verifier behind Serve serve all sides in turn. One phase asks for all G samples of a
prompt at once; R rounds ask for G0, wait for the shard's last, divide, and so on R times, with the
coordinator's own code. All keep as many shards in flight: four, so that one shard's barrier is another's
work, and one, where nothing fills the gap. A run goes on for hundreds of shards; with few of them the last
one's barriers, which no other shard follows, are most of what would be measured.

The tail is the last round: its seconds, from its division to the shard's last group, as a share of the
shard's.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from actors.calls import generator_calls, verifier_calls
from actors.coordinator.allocation import divide_round, rounds_of
from actors.coordinator.cycles import BatchAllocation
from actors.coordinator.deployment import render_prompts
from actors.coordinator.sampling import Generate, Sampler, Score
from actors.coordinator.shard import Shard, next_round, phase_a, phase_b
from common.config import Config
from common.load import load
from common.prompts import load_tokenizer
from common.types import SamplingRequest

IN_FLIGHT = (4, 1)
ONE_PHASE = "one phase"


@dataclass(frozen=True, slots=True)
class Spent:
    """What one shard took: completion tokens, seconds, and the seconds of its last round."""

    tokens: int
    seconds: float
    tail: float


RunShard = Callable[[Shard], Awaitable[Spent]]


@dataclass(frozen=True, slots=True)
class Measured:
    """One side's shards of one repeat."""

    tokens_per_second: float
    shards: Sequence[Spent]


def in_rounds(config: Config, generate: Generate, score: Score) -> RunShard:
    """One shard by the configured rule, rounds and stop."""

    async def run(shard: Shard) -> Spent:
        began, sample = time.monotonic(), Sampler(shard, generate, score)
        rows = np.array([p.index for p in shard.prompts])
        batch = BatchAllocation(config.allocation.rule, rows, np.ones(len(rows)), np.ones(len(rows)))
        divide = partial(divide_round, config, batch, rows.tolist())
        plan = await phase_a(shard, sample, divide)
        while len(plan.rounds) < rounds_of(config, plan.rule):
            plan = await next_round(shard, plan, sample, divide)
        last = time.monotonic()
        tokens = sum([g.tokens async for g in phase_b(shard, plan, sample)])
        return Spent(tokens, time.monotonic() - began, time.monotonic() - last)

    return run


def one_phase(config: Config, generate: Generate, score: Score) -> RunShard:
    """One shard under GRPO: G samples of every prompt, in requests of the same size, without a barrier."""
    most, group = config.rollout.samples_per_request, config.rollout.group_size

    async def run(shard: Shard) -> Spent:
        async def ask(row: int, first: int) -> int:
            prompt, size = shard.prompts[row], min(most, group - first)
            completions = await generate(
                SamplingRequest(prompt=prompt, n=size, seed=shard.index * 10_000 + row * 100 + first)
            )
            await score(prompt, completions)
            return sum(len(c.tokens) for c in completions)

        began = time.monotonic()
        parts = [ask(row, first) for row in range(len(shard.prompts)) for first in range(0, group, most)]
        tokens = sum(await asyncio.gather(*parts))
        return Spent(tokens, time.monotonic() - began, 0.0)

    return run


async def measure_side(run: RunShard, shards: Sequence[Shard], in_flight: int) -> Measured:
    limit = asyncio.Semaphore(in_flight)

    async def one(shard: Shard) -> Spent:
        async with limit:
            return await run(shard)

    began = time.monotonic()
    spent = await asyncio.gather(*(one(s) for s in shards))
    return Measured(sum(s.tokens for s in spent) / (time.monotonic() - began), spent)


def shards_of(config: Config, count: int, repeat: int) -> list[Shard]:
    """`count` shards of the data set, other ones in every repeat."""
    data = render_prompts(config, load_tokenizer(config.model.path))
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
    sides: Mapping[str, Config], config: Config, count: int, repeats: int
) -> dict[tuple[int, str], list[Measured]]:
    """(shards in flight, side) -> each repeat; sides take turns to be first. `sides` are those in rounds."""
    from ray import serve

    from deploy.app import APP
    from deploy.launch.local import stack

    found: dict[tuple[int, str], list[Measured]] = {}

    async def run() -> None:
        generate = generator_calls(serve.get_deployment_handle("generator", APP), config, 0)
        score = verifier_calls(serve.get_deployment_handle("verifier", APP), config)
        runs = {ONE_PHASE: one_phase(config, generate, score)}
        runs |= {name: in_rounds(side, generate, score) for name, side in sides.items()}
        for side in runs.values():  # the first requests pay for preparation
            await measure_side(side, shards_of(config, 2, 1000), 2)
        for repeat in range(repeats):
            for in_flight in IN_FLIGHT:
                shards = shards_of(config, count * in_flight // max(IN_FLIGHT), repeat)
                for name in list(runs)[:: -1 if repeat % 2 else 1]:
                    measured = await measure_side(runs[name], shards, in_flight)
                    found.setdefault((in_flight, name), []).append(measured)

    with (
        tempfile.TemporaryDirectory() as folder,
        stack(config, Path(folder), Console(quiet=True), train=False),
    ):
        asyncio.run(run())
    return found


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="tiny")
    parser.add_argument(
        "--shards", type=int, default=32, help="of a side's repeat with four in flight; a quarter with one"
    )
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--stop", default="hit", help="allocation.stop with more than one round")
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def show(found: Mapping[tuple[int, str], Sequence[Measured]], names: Iterable[str]) -> None:
    table = Table(
        "shards in flight",
        "side",
        "tokens/s",
        "ratio of each repeat",
        "median",
        "a shard, s",
        "tail: median, most",
    )
    for in_flight in IN_FLIGHT:
        base = [m.tokens_per_second for m in found[in_flight, ONE_PHASE]]
        for name in (ONE_PHASE, *names):
            measured = found[in_flight, name]
            ratios = [m.tokens_per_second / b for m, b in zip(measured, base, strict=True)]
            spent = [s for m in measured for s in m.shards]
            tails = [s.tail / s.seconds for s in spent]
            table.add_row(
                str(in_flight),
                name,
                f"{statistics.median(m.tokens_per_second for m in measured):,.0f}",
                " ".join(f"{ratio:.2f}" for ratio in ratios),
                f"{statistics.median(ratios):.2f}",
                f"{statistics.median(s.seconds for s in spent):.1f}",
                f"{statistics.median(tails):.0%}, {max(tails):.0%}" if any(tails) else "",
            )
    Console(width=120).print(table)


def main() -> None:
    options = options_of()
    common = ["rollout.group_size=32", "rollout.pre_rollouts=8"]
    sides = {
        f"R = {n}": load(
            options.preset,
            [
                *common,
                f"allocation.rounds={n}",
                f"allocation.stop={options.stop if n > 1 else 'none'}",
            ],
        )
        for n in options.rounds
    }
    found = measure(sides, load(options.preset, common), options.shards, options.repeats)
    show(found, sides)


if __name__ == "__main__":
    main()
