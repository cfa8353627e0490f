"""What the barriers of Phase A and of Phase B's rounds cost: tokens per second against one-phase sampling at
the same budget.

    python -m benchmarks.two_phase [--preset tiny] [--shards 24] [--rounds 1 2 4 8] [--repeats 3]
        [--in-flight 4 1] [--prompts 15] [--layers 16]

One vLLM replica and one verifier behind Serve serve all sides in turn. One phase asks for all G samples of a
prompt at once; R rounds ask for G0, wait for the shard's last, divide, and so on R times, with the
coordinator's own code. All keep as many shards in flight: four, so that one shard's barrier is another's
work, and one, where nothing fills the gap. A run has hundreds of shards, so the speed is that of the
time in which so many are in flight: from the first one's end to the last one's start.

With `--layers` the model gets more layers, which pass on what they get: the same answers at a higher price,
so that the cost of a request weighs less, as with a larger model.

The tail is the last round: its seconds, from its division to the shard's last group, as a share of the
shard's.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from hora_rl.actors.coordinator.allocation import allocate_round
from hora_rl.actors.coordinator.calls import policy_calls, verifier_calls
from hora_rl.actors.coordinator.cycles import BatchAllocation
from hora_rl.actors.coordinator.deployment import render_prompts
from hora_rl.actors.coordinator.sampling import Generate, Sampler, Score
from hora_rl.actors.coordinator.shard import Shard, next_round, phase_a, phase_b
from hora_rl.common.config import Config
from hora_rl.common.load import load
from hora_rl.common.types import Completion, SamplingRequest

ONE_PHASE = "one phase"


@dataclass(frozen=True, slots=True)
class Spent:
    """What one shard took: completion tokens, seconds, and the seconds of its last round."""

    tokens: int
    seconds: float
    tail: float


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
        divide = partial(allocate_round, config, batch, rows.tolist())
        plan = await phase_a(shard, sample, divide)
        while len(plan.rounds) < config.allocation.under(plan.rule).rounds:
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


async def measure_side(run: RunShard, shards: Sequence[Shard], in_flight: int, meter: Meter) -> Measured:
    limit, starts, ends = asyncio.Semaphore(in_flight), list[float](), list[float]()

    async def one(shard: Shard) -> Spent:
        async with limit:
            starts.append(time.monotonic())
            spent = await run(shard)
            ends.append(time.monotonic())
            return spent

    spent = await asyncio.gather(*(one(s) for s in shards))
    return Measured(meter.tokens_per_second(ends[0], starts[-1]), spent)


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
    sides: Mapping[str, Config], config: Config, count: int, repeats: int, flights: Sequence[int]
) -> dict[tuple[int, str], list[Measured]]:
    """(shards in flight, side) -> each repeat; sides take turns to be first. `sides` are those in rounds."""
    from ray import serve

    from hora_rl.deploy.app import APP
    from hora_rl.deploy.launch.stack import stack

    found: dict[tuple[int, str], list[Measured]] = {}

    async def run() -> None:
        handle = serve.get_deployment_handle(config.policy, APP)
        generate = Meter(policy_calls(handle, config, 0, together=config.rollout.samples_per_request))
        score = verifier_calls(serve.get_deployment_handle("verifier", APP), config)
        runs = {ONE_PHASE: one_phase(config, generate, score)}
        runs |= {name: in_rounds(side, generate, score) for name, side in sides.items()}
        for side in runs.values():  # the first requests pay for preparation
            await measure_side(side, shards_of(config, 2, 1000), 1, generate)
        for repeat in range(repeats):
            for in_flight in flights:
                shards = shards_of(config, max(in_flight + 1, count * in_flight // max(flights)), repeat)
                for name in list(runs)[:: -1 if repeat % 2 else 1]:
                    measured = await measure_side(runs[name], shards, in_flight, generate)
                    found.setdefault((in_flight, name), []).append(measured)

    with (
        tempfile.TemporaryDirectory() as folder,
        stack(config, Path(folder), Console(quiet=True), train=False),
    ):
        asyncio.run(run())
    return found


def deepened(like: str, folder: Path, layers: int) -> Path:
    """Write the model `like` with `layers` layers, of which the added ones change nothing."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(like, dtype=torch.float32)
    weights, own = model.state_dict(), model.config.num_hidden_layers
    shape = AutoConfig.from_pretrained(like)
    shape.num_hidden_layers, shape.layer_types = layers, ["full_attention"] * layers
    deep = AutoModelForCausalLM.from_config(shape)
    with torch.no_grad():
        for layer in deep.model.layers[own:]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    deep.load_state_dict(weights, strict=False)
    shutil.copytree(like, folder, ignore=shutil.ignore_patterns("config.json", "*.safetensors"))
    deep.save_pretrained(folder)
    return folder


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="tiny")
    parser.add_argument(
        "--shards",
        type=int,
        default=24,
        help="of a side's repeat with most in flight; fewer in proportion with fewer",
    )
    parser.add_argument("--in-flight", type=int, nargs="+", default=[4, 1], help="shards at the same time")
    parser.add_argument("--prompts", type=int, default=15, help="of a shard")
    parser.add_argument("--layers", type=int, default=0, help="of the model, where that is more than it has")
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--stop", default="hit", help="allocation.stop with more than one round")
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def show(
    found: Mapping[tuple[int, str], Sequence[Measured]], names: Iterable[str], flights: Iterable[int]
) -> None:
    table = Table(
        "shards in flight",
        "side",
        "tokens/s",
        "ratio of each repeat",
        "median",
        "a shard, s",
        "tail: median, most",
    )
    for in_flight in flights:
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


def compare(options: argparse.Namespace, common: list[str]) -> None:
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
    found = measure(sides, load(options.preset, common), options.shards, options.repeats, options.in_flight)
    show(found, sides, options.in_flight)


def main() -> None:
    options = options_of()
    per_batch = options.prompts * load(options.preset).rollout.shards
    common = [
        "rollout.group_size=32",
        "rollout.pre_rollouts=8",
        f"rollout.prompts_per_batch={per_batch}",
    ]
    with tempfile.TemporaryDirectory() as folder:
        if options.layers:
            path = deepened(load(options.preset).model.path, Path(folder) / "model", options.layers)
            common.append(f"model.path={path}")
        compare(options, common)


if __name__ == "__main__":
    main()
