"""Routing by prefix against routing by load: tokens per second, prompt tokens found in the prefix cache, a shard's time.

    python -m benchmarks.routing [--replicas 2] [--shards 8] [--rounds 2]

Two stacks in turn, equal but for `generator.routing`, on the same shards: HORA's two phases with four shards in flight, so
that Phase B of a prompt comes when its Phase A has left the cache or not. Prompts are the problems of MATH500 (about 200 tokens in the demo
model's alphabet), answers short: the case where a prefix is worth most. Replicas that share cores show less than
replicas that own a GPU; hits do not depend on that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from actors.calls import generator_calls, verifier_calls
from actors.coordinator.shard import Shard
from benchmarks.two_phase import RunShard, shards_of, two_phases
from common.config import Config
from common.keys import Keys
from common.load import load
from common.redis import connect
from deploy.launch.ports import free_port

IN_FLIGHT, SETTLE_S = 4, 2.5


@dataclass(frozen=True, slots=True)
class Found:
    """One round. `hits` of `lookups` prompt tokens were in a cache; `seconds` of each shard."""

    rate: float
    hits: int
    lookups: int
    seconds: list[float]


def configuration(routing: str, replicas: int) -> Config:
    settings = {
        "data.path": "evaluation/data/math500.jsonl",
        "generator.routing": routing,
        "generator.replicas": replicas,
        "generator.cpus": 0.25,
        "rollout.group_size": 32,
        "rollout.pre_rollouts": 8,
        "rollout.max_prompt_tokens": 384,
        "rollout.max_response_tokens": 32,
        "telemetry.http_port": free_port(),
    }
    return load("tiny", [f"{key}={value}" for key, value in settings.items()])


async def timed(run: RunShard, shards: list[Shard]) -> tuple[float, list[float]]:
    """Tokens per second over all shards, and the seconds of each."""
    limit, seconds = asyncio.Semaphore(IN_FLIGHT), []

    async def one(shard: Shard) -> int:
        async with limit:
            began = time.monotonic()
            tokens = await run(shard)
            seconds.append(time.monotonic() - began)
            return tokens

    began = time.monotonic()
    tokens = sum(await asyncio.gather(*(one(s) for s in shards)))
    return tokens / (time.monotonic() - began), seconds


def cached(url: str, run: str) -> tuple[int, int]:
    """Prompt tokens found in and looked up in all replicas' prefix caches so far."""
    time.sleep(SETTLE_S)  # heartbeats come once a second
    client: Any = connect(url)
    parts = [json.loads(v) for n, v in client.hgetall(Keys(run).parts).items() if n.startswith(b"generator/")]
    return sum(p["prefix_hits"] for p in parts), sum(p["prefix_queries"] for p in parts)


def measure(routing: str, options: argparse.Namespace) -> list[Found]:
    from ray import serve

    from deploy.app import APP
    from deploy.launch.local import stack

    config, found = configuration(routing, options.replicas), []
    with (
        tempfile.TemporaryDirectory() as folder,
        stack(config, Path(folder), Console(quiet=True), train=False) as url,
    ):
        for round_ in range(options.rounds + 1):  # the first pays for preparation
            before = cached(url, config.run.name)

            async def once(shards: list[Shard]) -> tuple[float, list[float]]:
                generate = generator_calls(serve.get_deployment_handle("generator", APP), config, 0)
                score = verifier_calls(serve.get_deployment_handle("verifier", APP), config)
                return await timed(two_phases(config, generate, score), shards)

            rate, seconds = asyncio.run(once(shards_of(config, options.shards, round_)))
            after = cached(url, config.run.name)
            found.append(Found(rate, after[0] - before[0], after[1] - before[1], seconds))
    return found[1:]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    table = Table("routing", "tokens/s", "prompt tokens from the cache", "a shard, median", "slowest shard")
    for routing in ("balance", "prefix"):
        rounds = measure(routing, options)
        seconds = [s for r in rounds for s in r.seconds]
        hits, lookups = sum(r.hits for r in rounds), sum(r.lookups for r in rounds)
        cells = (
            f"{statistics.median(r.rate for r in rounds):,.0f}",
            f"{hits / lookups:.1%}",
            f"{statistics.median(seconds):.1f} s",
            f"{max(seconds):.1f} s",
        )
        table.add_row(routing, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
