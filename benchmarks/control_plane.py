"""What the control plane costs as the fleet grows: 256 replicas as timers, everything else real.

    python -m benchmarks.control_plane [--replicas 256] [--prompts 4096] [--group 64] [--tokens 2048] [--rate 2500]

A fleet of `--replicas` engines of `--rate` tokens per second each is simulated by timers; coordination, allocation, wire,
queue (the embedded Redis, every write synced), ledger, claim and decode are real. Every answer has `--tokens` tokens. For
a step, printed are the processor seconds of each part over the wall time that the simulated fleet needs for it: a part at
100% would be what the step waits for. Serve's own hops are not in it; `benchmarks.generation` measures them.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.simulated import Fleet, Learner, coordinate, prompts
from common.config import Config
from common.load import load
from common.memory import freeze_heap, keep_freed_memory
from deploy.redis_server import RedisServer


def config_of(gamma: int, group: int, tokens: int, steps: int) -> Config:
    settings = {
        "run.name": "control-plane",
        "rollout.prompts_per_batch": gamma,
        "rollout.group_size": group,
        "rollout.pre_rollouts": max(1, group // 4),
        "rollout.shards": 16,
        "rollout.shards_in_flight": 8,
        "rollout.max_staleness": 0,
        "rollout.max_prompt_tokens": 256,
        "rollout.max_response_tokens": tokens,
        "learner.tokens_per_microbatch": 2 * tokens,
        "learner.steps": steps,
        "allocation.warmup.enabled": "false",
    }
    return load("tiny", [f"{key}={value}" for key, value in settings.items()])


def learn(config: Config, url: str, answer: Any) -> None:
    """The learner's process: claims, validates, plans and decodes; sends its processor seconds."""
    began = time.process_time()
    with answer:  # closed in any case, so that nobody waits for a learner that fell
        Learner(config, url, lambda: 0.0).run()
        answer.send(time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replicas", type=int, default=256)
    parser.add_argument("--prompts", type=int, default=4096)
    parser.add_argument("--group", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=2048, help="of every answer")
    parser.add_argument("--rate", type=float, default=2500.0, help="tokens per second of one replica")
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    config = config_of(options.prompts, options.group, options.tokens, options.steps)
    # The timers fire at once: the wall time of a real fleet is worked out from the tokens, so that the figures are
    # processor time alone and do not depend on how busy this machine is.
    fleet = Fleet(seconds_of=lambda request, lengths: 0.0, lengths_of=lambda n: np.full(n, options.tokens))
    keep_freed_memory()
    freeze_heap()
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as folder, RedisServer(Path(folder) / "redis") as server:
        learner = context.Process(target=learn, args=(config, server.url, theirs))
        learner.start()
        theirs.close()
        began, wall = time.process_time(), time.monotonic()
        asyncio.run(coordinate(config, server.url, prompts(options.prompts, 200), fleet, "coordinator"))
        coordinator, wall = time.process_time() - began, time.monotonic() - wall
        feed = float(mine.recv())
        learner.join()
        times = psutil.Process(server.pid).cpu_times()
        redis = float(times.user + times.system)
    report(options, wall, {"coordinator": coordinator, "Redis": redis, "feed of the learner": feed})


def report(options: argparse.Namespace, wall: float, parts: dict[str, float]) -> None:
    console = Console()
    rollouts = options.prompts * options.group
    tokens = rollouts * options.tokens
    step = tokens / (options.replicas * options.rate)
    console.print(
        f"{options.steps} steps of Γ·G = {options.prompts}·{options.group} = {rollouts:,} rollouts, "
        f"{tokens / 1e6:.0f} million tokens each: {step:.0f} s of {options.replicas} replicas at "
        f"{options.rate:,.0f} tokens/s. Alone, the control plane took {wall / options.steps:.1f} s a step here."
    )
    table = Table("part", "processor seconds a step", "share of the step", "saturates at (replicas)")
    for name, seconds in sorted(parts.items(), key=lambda p: -p[1]):
        each = seconds / options.steps
        table.add_row(name, f"{each:.1f}", f"{each / step:.1%}", f"{options.replicas * step / each:,.0f}")
    console.print(table)
    console.print(f"target: coordinator, queue and allocation under 5%; each rollout costs the coordinator "
                  f"{1e6 * parts['coordinator'] / options.steps / rollouts:.0f} µs")  # fmt: skip


if __name__ == "__main__":
    main()
