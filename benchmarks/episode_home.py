"""What it is worth that the turns of an episode go to one generator replica, over Serve and its router.

    python -m benchmarks.episode_home [--episodes 64] [--turns 5] [--rounds 6] [--hidden 512 --layers 8]

Two real replicas, real conversations. Two sides in turn: an episode's turns keep their home while it has a
place, and every turn goes by load. All episodes of a round start at once. No two rounds share a problem, so
that no cache holds another round's. Time is processor time of the engines and wall time.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.console import Console

from actors.calls import generator_calls
from actors.coordinator.sampling import Generate
from actors.environment.episodes import Episodes
from benchmarks.prefix_reuse import NoTools, configured, parser_of, talk
from common.config import Config
from common.datasets import Row
from common.keys import Keys
from common.prompts import load_tokenizer, make_prompt
from common.redis import connect
from common.telemetry import HEARTBEAT_S, beats
from common.types import SamplingRequest

HOME, LOAD = "at home", "by load"


@dataclass(frozen=True, slots=True)
class Measured:
    """One side once: seconds, and the share of prompt tokens that a cache held."""

    cpu_s: float
    wall_s: float
    found: float


def engines_cpu_s() -> float:
    """Processor time so far of the engines of this machine, in seconds."""
    times = [p.cpu_times() for p in psutil.process_iter() if p.name().startswith("VLLM::EngineCor")]
    return sum(t.user + t.system for t in times)


def cache(url: str, run: str) -> tuple[int, int]:
    """Prompt tokens so far that were found in a replica's cache, and all."""
    time.sleep(2.5 * HEARTBEAT_S)
    states = beats(connect(url).hgetall(Keys(run).parts), "generator")
    return sum(int(s["prefix_hits"]) for s in states), sum(int(s["prefix_queries"]) for s in states)


class Side:
    """Episodes whose turns go to the replicas of the running application."""

    def __init__(self, config: Config, url: str, *, at_home: bool) -> None:
        self._config, self._url, self._at_home = config, url, at_home

    async def play(self, first: int, episodes: int) -> Measured:
        """Episodes of the problems `first` to `first + episodes - 1`."""
        from ray import serve

        from deploy.app import APP

        config, tokenizer = self._config, load_tokenizer(self._config.model.path)
        handle = serve.get_deployment_handle("generator", APP)

        def turns(version: int, episode: str) -> Generate:
            return generator_calls(handle, config, version, session=episode if self._at_home else "")

        made = Episodes(config, tokenizer, talk, NoTools(), lambda name, amount: None)
        requests = []
        for i in range(first, first + episodes):
            prompt = make_prompt(tokenizer, i, Row(i, f"{3 * i + 11}+{7 * i + 5}=?", ""), config.data)
            requests.append(SamplingRequest(prompt, 1, seed=i))
        hits, queries = cache(self._url, config.run.name)
        cpu, wall = engines_cpu_s(), time.monotonic()
        found = await asyncio.gather(*(made.make(request, 0, turns) for request in requests))
        spent = engines_cpu_s() - cpu, time.monotonic() - wall
        for episode in found:
            assert isinstance(episode, list), episode
            assert len(episode[0].turns) == config.environment.max_turns
        more_hits, more_queries = cache(self._url, config.run.name)
        return Measured(*spent, (more_hits - hits) / max(1, more_queries - queries))


def measure(config: Config, episodes: int, rounds: int) -> dict[str, list[Measured]]:
    from deploy.launch.stack import stack

    plain = config.model_copy(update={"environment": config.environment.model_copy(update={"path": None})})
    found: dict[str, list[Measured]] = {HOME: [], LOAD: []}

    async def run(url: str) -> None:
        sides = {name: Side(config, url, at_home=name == HOME) for name in found}
        first = 0
        for number in range(-1, rounds):  # the first one pays for one-time preparation
            for name in list(sides)[:: -1 if number % 2 else 1]:
                measured = await sides[name].play(first, episodes)
                first += episodes
                if number >= 0:
                    found[name].append(measured)

    console = Console(quiet=True)
    with tempfile.TemporaryDirectory() as folder, stack(plain, Path(folder), console, train=False) as url:
        asyncio.run(run(url))
    return found


def main() -> None:
    options = parser_of(__doc__, episodes=64, rounds=6).parse_args()
    with configured(options) as config:
        generator = config.generator.model_copy(update={"replicas": 2})
        found = measure(config.model_copy(update={"generator": generator}), options.episodes, options.rounds)
    for side, measured in found.items():
        pairs = list(zip(measured, found[LOAD], strict=True))
        cpu, wall = sorted(m.cpu_s / b.cpu_s for m, b in pairs), sorted(m.wall_s / b.wall_s for m, b in pairs)
        print(
            f"{side:8} {statistics.median(m.found for m in measured):6.1%} of context found; "
            f"{statistics.median(m.cpu_s for m in measured):.2f} s of processor, ratio "
            f"{statistics.median(cpu):.2f} ({cpu[0]:.2f} to {cpu[-1]:.2f}); "
            f"{statistics.median(m.wall_s for m in measured):.2f} s wall, ratio "
            f"{statistics.median(wall):.2f} ({wall[0]:.2f} to {wall[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
