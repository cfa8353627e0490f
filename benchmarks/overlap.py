"""How well generation and learning overlap: wall time per step over the longer of the two, at staleness 0 and
1.

    python -m benchmarks.overlap [--seconds 2] [--steps 12]

Coordination, allocation, queue, ledger and feed are real and share one Redis; engines and optimizer are
timers set so that generating a batch and learning from it take the same time. What is above 1.0 at staleness
1 is the price of the control plane and of the steps before the pipeline is full, which are left out.
Synchronously the two add up: about 2.
"""

import argparse
import asyncio
import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from hora_rl.common.config import Config
from hora_rl.common.load import load
from hora_rl.deploy.machine.redis_server import RedisServer
from tests.support.simulated import Fleet, Learner, coordinate, prompts

WARM = 3  # steps that fill the pipeline


def config_of(staleness: int, steps: int) -> Config:
    settings = {
        "run.name": f"overlap-{staleness}",
        "rollout.prompts_per_batch": 32,
        "rollout.group_size": 16,
        "rollout.pre_rollouts": 4,
        "rollout.shards": 4,
        "rollout.shards_in_flight": 8,
        "rollout.max_staleness": staleness,
        "learner.steps": steps,
        "allocation.warmup.enabled": "false",
    }
    return load("tiny", [f"{key}={value}" for key, value in settings.items()])


class Engine:
    """One engine of a fixed rate: requests share it, and a request is as slow as its longest completion."""

    def __init__(self, seconds_per_batch: float, rollouts_per_batch: int) -> None:
        self._seconds = seconds_per_batch / rollouts_per_batch
        self._free_at = 0.0

    def seconds_of(self, request: object, lengths: np.ndarray) -> float:
        """Work is served in order of arrival: the wait for what came before, and the own share."""
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + self._seconds * len(lengths)
        return self._free_at - now


def step_seconds(staleness: int, seconds: float, steps: int) -> list[float]:
    """Wall time of each step after the pipeline is full."""
    config = config_of(staleness, steps)
    engine = Engine(seconds, config.rollout.batch_size)
    draw = np.random.default_rng(0)
    fleet = Fleet(seconds_of=engine.seconds_of, lengths_of=lambda n: draw.integers(20, 40, n))
    ends: list[float] = []

    def learn() -> float:
        ends.append(time.monotonic())  # the groups are there: this step begins
        return seconds

    with tempfile.TemporaryDirectory() as folder, RedisServer(Path(folder) / "redis") as server:
        learner = Learner(config, server.url, learn, checkpoint_every=10)
        thread = threading.Thread(target=learner.run)
        thread.start()
        asyncio.run(coordinate(config, server.url, prompts(1000), fleet, "coordinator"))
        thread.join()
    return np.diff(ends)[WARM:].tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="of generating and of learning a batch")
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    table = Table("staleness", "seconds of a step", "over the longer of the two", "target")
    for staleness, target in ((0, "about 2"), (1, "at most 1.1")):
        result = step_seconds(staleness, options.seconds, options.steps)
        middle = statistics.median(result)
        table.add_row(
            str(staleness),
            f"{middle:.2f} ({min(result):.2f} to {max(result):.2f})",
            f"{middle / options.seconds:.2f}",
            target,
        )
    Console().print(table)


if __name__ == "__main__":
    main()
