"""Ten hours' worth of steps in minutes: does anything grow that should not?

    python -m benchmarks.soak [--steps 600] [--prompts 60] [--group 32] [--tokens 256]

Engines and optimizer are timers that fire at once, so a step takes as long as the control plane needs. At a
minute a step, 600 steps are ten hours. Coordinator, queue (the embedded Redis, every write synced), ledger,
the learner's feed and the feed of the views are real, each in a process of its own. Sampled over the second
half of the steps, so that pools have filled up: resident memory, open handles and threads of each process,
Redis' memory and its files. Printed is what each gains per 1,000 steps with a 95% interval.

Ledger, plans and step records grow with the run, on purpose: an audit reads them. They are in Redis, and its
slope is theirs. Nothing else may have a slope that is clear of zero.
"""

import argparse
import asyncio
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table
from scipy import stats

from hora_rl.actors.coordinator.deployment import write_history
from hora_rl.common.config import Config
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import Redis, connect, connect_async
from hora_rl.common.live.state import read_state
from hora_rl.common.load import load
from hora_rl.deploy.machine.redis_server import RedisServer
from hora_rl.deploy.monitor.feed import Feed
from tests.support.simulated import Fleet, Learner, coordinate, prompts

MIB = 2**20
EVERY_S = 0.25
CHECKPOINT_EVERY = 10


@dataclass(frozen=True, slots=True)
class Growth:
    """One quantity over the second half: its first and last value, and what 1,000 steps add, give or take
    half of a 95% interval."""

    what: str
    first: float
    last: float
    slope: float
    plus_minus: float

    @property
    def grows(self) -> bool:
        return self.slope > self.plus_minus


class Forgetful(dict[int, Any]):
    """Keeps nothing: the simulated learner's own notes must not look like a leak."""

    def __setitem__(self, step: int, value: Any) -> None:
        del step, value


def growth(what: str, steps: np.ndarray, values: np.ndarray) -> Growth:
    """Of `values` (n,) measured at `steps` (n,). Neighbours are alike, so the interval is that of the means
    of eight stretches."""
    stretches = [part for part in np.array_split(np.arange(len(steps)), 8) if len(part)]
    x, y = (np.array([series[part].mean() for part in stretches]) for series in (steps, values))
    fit = stats.linregress(x, y)
    half = float(np.nan_to_num(stats.t.ppf(0.975, len(x) - 2) * fit.stderr))
    return Growth(what, float(values[0]), float(values[-1]), 1000 * float(fit.slope), 1000 * half)


def config_of(options: argparse.Namespace) -> Config:
    settings = {
        "run.name": "soak",
        "rollout.prompts_per_batch": options.prompts,
        "rollout.group_size": options.group,
        "rollout.pre_rollouts": max(1, options.group // 4),
        "rollout.shards": 4,
        "rollout.max_staleness": 1,
        "rollout.max_response_tokens": options.tokens,
        "learner.tokens_per_microbatch": 8 * options.tokens,
        "learner.steps": options.steps,
    }
    return load("tiny", [f"{key}={value}" for key, value in settings.items()])


def coordinating(config: Config, url: str, tokens: int) -> None:
    rng = np.random.default_rng(0)
    fleet = Fleet(lambda request, lengths: 0.0, lambda n: rng.integers(tokens // 2, tokens, n))

    async def both() -> None:
        client = connect_async(url)
        history = asyncio.create_task(
            write_history(client, config.run.name, config.rollout.prompts_per_batch)
        )
        await coordinate(config, url, prompts(8 * config.rollout.prompts_per_batch), fleet, "coordinator")
        history.cancel()
        await client.aclose()

    asyncio.run(both())


def learning(config: Config, url: str) -> None:
    learner = Learner(config, url, lambda: 0.0, checkpoint_every=CHECKPOINT_EVERY)
    learner.trained, learner.waited = Forgetful(), Forgetful()
    learner.run()


def viewing(url: str) -> None:
    """The page's feed and its charts, read as if somebody looked on all the time."""

    async def look() -> None:
        feed = Feed(url, "soak")
        feed.start()
        while True:
            await feed.history()
            await asyncio.sleep(1.0)

    asyncio.run(look())


def sample(client: Redis, folder: Path, processes: Mapping[str, psutil.Process]) -> dict[str, float]:
    """Every quantity now. Raises psutil.NoSuchProcess once a part has ended."""
    figures: dict[str, float] = {"step": float(read_state(client, "soak").step)}
    for name, process in processes.items():
        with process.oneshot():
            figures[f"{name}: resident memory, MiB"] = process.memory_info().rss / MIB
            figures[f"{name}: open handles"] = process.num_fds()
            figures[f"{name}: threads"] = process.num_threads()
    figures["Redis: memory in use, MiB"] = client.info("memory")["used_memory"] / MIB
    figures["Redis: clients"] = client.info("clients")["connected_clients"]
    figures["disk: Redis' files, MiB"] = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) / MIB
    return figures


def soak(config: Config, tokens: int, console: Console) -> list[Growth]:
    """Run to the last step; what grew over the second half of the steps."""
    context = multiprocessing.get_context("spawn")
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder, RedisServer(Path(folder) / "redis") as server:
        jobs: dict[str, tuple[Callable[..., None], tuple[Any, ...]]] = {
            "coordinator": (coordinating, (config, server.url, tokens)),
            "learner's feed": (learning, (config, server.url)),
            "views": (viewing, (server.url,)),
        }
        running = {
            name: context.Process(target=job, args=arguments) for name, (job, arguments) in jobs.items()
        }
        for process in running.values():
            process.start()
        watched = {name: psutil.Process(process.pid) for name, process in running.items()}
        watched["Redis"] = psutil.Process(server.pid)
        client, steps = connect(server.url), running["learner's feed"]
        try:
            while steps.is_alive():
                if client.exists(Keys("soak").state):
                    rows.append(sample(client, Path(folder), watched))
                time.sleep(EVERY_S)
        except psutil.NoSuchProcess:
            console.print("a part ended first", style="yellow")
        for name, process in running.items():
            process.join(0 if name == "views" else 60)
            process.terminate()
    if steps.exitcode or not rows:
        raise SystemExit(f"the learner ended with {steps.exitcode} after {len(rows)} samples")
    return grown(rows)


def grown(rows: list[dict[str, float]]) -> list[Growth]:
    """Of the samples in the second half of the steps, where each has the quantity; not of the last, when
    parts end."""
    last = rows[-1]["step"]
    late = [row for row in rows if last / 2 <= row["step"] < last]
    steps = np.array([row["step"] for row in late])
    names = [name for name in late[0] if name != "step" and all(name in row for row in late)]
    return [growth(name, steps, np.array([row[name] for row in late])) for name in names]


def table_of(growths: Sequence[Growth]) -> Table:
    table = Table("quantity", "half way", "end", "per 1,000 steps", "")
    for row in growths:
        gain = f"{row.slope:+.2f} ± {row.plus_minus:.2f}"
        table.add_row(row.what, f"{row.first:.1f}", f"{row.last:.1f}", gain, "grows" if row.grows else "")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--group", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=256, help="of the longest answer")
    options = parser.parse_args()
    console, began = Console(), time.monotonic()
    growths = soak(config_of(options), options.tokens, console)
    console.print(table_of(growths))
    rollouts = options.steps * options.prompts * options.group
    console.print(
        f"{options.steps} steps, {rollouts:,} rollouts in {time.monotonic() - began:.0f} s on "
        f"{os.cpu_count()} CPUs"
    )


if __name__ == "__main__":
    main()
