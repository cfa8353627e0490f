"""Tokens per second of one engine by how many completions are asked for at once, and by how many a request
asks for.

    python -m benchmarks.fill [--preset tiny] [--repeats 2]

Rounds of Phase B ask for fewer completions at once than one phase, in smaller requests. This is what either
costs the engine, called directly. The speed is that of the middle of each side, from a quarter of its time to
four fifths.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import time

from rich.console import Console
from rich.table import Table

from actors.coordinator.deployment import render_prompts
from common.load import load
from common.prompts import load_tokenizer

SIDES = [(512, 16), (256, 16), (128, 16), (64, 16), (256, 4), (128, 4), (64, 4), (256, 1), (128, 1)]
BEGIN, END = 0.25, 0.8


async def measure(preset: str, repeats: int) -> dict[tuple[int, int], list[float]]:
    """(completions at once, completions of a request) -> tokens per second of each repeat."""
    from actors.generator.vllm_engine import Engine

    config = load(preset)
    prompts = render_prompts(config, load_tokenizer(config.model.path))
    engine, number = Engine(config), itertools.count()
    await engine.label(0)

    async def side(at_once: int, size: int) -> float:
        limit, answered = asyncio.Semaphore(at_once // size), list[tuple[float, int]]()

        async def one() -> None:
            async with limit:
                i = next(number)
                completions = await engine.generate(prompts[i % len(prompts)].tokens, size, 1000 * i, 1.0)
                answered.append((time.monotonic(), sum(len(c.tokens) for c in completions)))

        began = time.monotonic()
        await asyncio.gather(*(one() for _ in range((2560 if at_once >= 128 else 1536) // size)))
        seconds = time.monotonic() - began
        begin, end = began + BEGIN * seconds, began + END * seconds
        return sum(tokens for at, tokens in answered if begin < at <= end) / (end - begin)

    await side(256, 16)  # the first requests pay for preparation
    found: dict[tuple[int, int], list[float]] = {s: [] for s in SIDES}
    for repeat in range(repeats):
        for key in SIDES[:: -1 if repeat % 2 else 1]:
            found[key].append(await side(*key))
    engine.shutdown()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    found = asyncio.run(measure(options.preset, options.repeats))
    full = statistics.median(found[256, 16])
    table = Table("at once", "of a request", "tokens/s, median", "of 256 in requests of 16")
    for (at_once, size), speeds in found.items():
        speed = statistics.median(speeds)
        table.add_row(str(at_once), str(size), f"{speed:,.0f}", f"{speed / full:.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
