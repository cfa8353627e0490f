"""What the control plane costs as the fleet grows: 256 replicas as timers, everything else real.

    python -m benchmarks.control_plane [--replicas 256] [--prompts 4096] [--group 64]
        [--tokens 2048] [--rate 2500]

A fleet of `--replicas` engines of `--rate` tokens per second each is simulated by timers; coordination,
allocation, wire, queue (the embedded Redis, every write synced), ledger, claim and decode are real. Every
answer has `--tokens` tokens. For the first step and for the median of those after it, printed are the
processor seconds of each part over the wall time that the simulated fleet needs for a step: a part at 100%
would be what the step waits for. The first step touches memory that the later ones use again. Serve's own
hops are not in it; `benchmarks.language_model` measures them.
"""

import argparse
import asyncio
import itertools
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from hora_rl.common.config import Config
from hora_rl.common.load import load
from hora_rl.common.processes import KEEP_FREED_MEMORY, freeze_heap
from hora_rl.deploy.machine.redis_server import RedisServer
from tests.support.simulated import Fleet, Learner, coordinate, prompts

COORDINATOR, REDIS, FEED = "coordinator", "Redis", "feed of the learner"


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


def learn(config: Config, url: str, others: dict[str, int], answer: Any) -> None:
    """The learner's process: claims, validates, plans and decodes; sends at each step's end what every part
    has used. `others`: their process ids. With no staleness nobody works on the next step by then."""
    processes = {name: psutil.Process(pid) for name, pid in {**others, FEED: os.getpid()}.items()}
    used = [_seconds(processes)]

    def trained() -> float:
        used.append(_seconds(processes))
        return 0.0

    with answer:  # closed in any case, so that nobody waits for a learner that fell
        Learner(config, url, trained).run()
        answer.send(used)


def _seconds(processes: dict[str, psutil.Process]) -> dict[str, float]:
    """Processor seconds of each part until now."""
    times = {name: process.cpu_times() for name, process in processes.items()}
    return {name: float(t.user + t.system) for name, t in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, default=256)
    parser.add_argument("--prompts", type=int, default=4096)
    parser.add_argument("--group", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=2048, help="of every answer")
    parser.add_argument("--rate", type=float, default=2500.0, help="tokens per second of one replica")
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    config = config_of(options.prompts, options.group, options.tokens, options.steps)
    # The timers fire at once: the wall time of a real fleet is worked out from the tokens, so that the
    # figures are processor time alone and do not depend on how busy this machine is.
    fleet = Fleet(seconds_of=lambda request, lengths: 0.0, lengths_of=lambda n: np.full(n, options.tokens))
    freeze_heap()
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as folder, RedisServer(Path(folder) / "redis") as server:
        others = {COORDINATOR: os.getpid(), REDIS: server.pid}
        learner = context.Process(target=learn, args=(config, server.url, others, theirs))
        learner.start()
        theirs.close()
        wall = time.monotonic()
        asyncio.run(coordinate(config, server.url, prompts(options.prompts, 200), fleet, "coordinator"))
        wall = time.monotonic() - wall
        used = mine.recv()
        learner.join()
    report(options, wall, used)


def report(options: argparse.Namespace, wall: float, used: list[dict[str, float]]) -> None:
    """`used[i]`: processor seconds of each part when step i - 1 was read."""
    console = Console()
    rollouts = options.prompts * options.group
    tokens = rollouts * options.tokens
    step = tokens / (options.replicas * options.rate)
    console.print(
        f"{options.steps} steps of Γ·G = {options.prompts}·{options.group} = {rollouts:,} rollouts, "
        f"{tokens / 1e6:.0f} million tokens each: {step:.0f} s of {options.replicas} replicas at "
        f"{options.rate:,.0f} tokens/s. Alone, the control plane took {wall / options.steps:.1f} s a step "
        "here."
    )
    steps = [
        {name: after[name] - before[name] for name in after} for before, after in itertools.pairwise(used)
    ]
    table = Table(
        "part", "first step, s", "later steps, s (least to most)", "share of a later step", "saturates at"
    )
    later = {name: [s[name] for s in steps[1:] or steps] for name in steps[0]}
    median = {name: statistics.median(values) for name, values in later.items()}
    for name in sorted(median, key=lambda part: -median[part]):
        span = f"{median[name]:.1f} ({min(later[name]):.1f} to {max(later[name]):.1f})"
        saturates = f"{options.replicas * step / median[name]:,.0f} replicas"
        table.add_row(name, f"{steps[0][name]:.1f}", span, f"{median[name] / step:.1%}", saturates)
    console.print(table)
    first, rest = ((s[COORDINATOR] + s[REDIS]) / step for s in (steps[0], median))
    console.print(
        f"coordinator, queue and allocation together: {rest:.1%} of a later step, {first:.1%} of the first "
        f"(target: under 5%); a rollout costs the coordinator {1e6 * median[COORDINATOR] / rollouts:.0f} µs"
    )


if __name__ == "__main__":
    if not os.environ.keys() >= KEEP_FREED_MEMORY.keys():
        # glibc reads these when a process starts; a served coordinator gets them from its deployment.
        arguments = [sys.executable, "-m", "benchmarks.control_plane", *sys.argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, **KEEP_FREED_MEMORY})
    main()
