"""What vLLM's prefix cache is worth between the turns of episodes, and what one replica for all turns of an
episode is worth beyond it.

    python -m benchmarks.prefix_reuse [--episodes 48] [--turns 5] [--rounds 5] [--hidden 512 --layers 8]

Real engines (two), real conversations. Three sides in turn, the same episodes with the same
seeds, each with an empty cache: every turn computes its whole context; turns find what is cached, an
episode's all on one engine; turns find what is cached, each on the next engine.

Time is processor time of this process and of the engines' processes: on a shared machine wall time says
little.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from actors.coordinator.sampling import Generate
from actors.environment.episodes import Episodes, Turns
from actors.environment.protocol import Episode, EpisodeOver, Speaker, Tools
from benchmarks.generation import random_model
from common.config import Config
from common.datasets import Row
from common.load import load
from common.prompts import load_tokenizer, make_prompt
from common.types import Completion, SamplingRequest

SAY = {"role": "user", "content": "The tool printed 42. What is next?"}
WHOLE, HOME, SPREAD = "whole context", "one replica an episode", "any replica"


@dataclass(frozen=True, slots=True)
class Measured:
    """One side once: seconds, and tokens of prompts with how many of them the cache held."""

    cpu_s: float
    wall_s: float
    tokens: int
    found: int


class NoTools:
    async def python(self, source: str, stdin: str = "") -> str:
        return ""


def configuration(turns: int, tokens: int, model: str | None) -> Config:
    return load(
        "tiny",
        [
            "environment.path=calculator",
            f"environment.max_turns={turns}",
            f"environment.max_turn_tokens={tokens}",
            f"environment.max_given_tokens={50 * turns}",
            f"rollout.max_response_tokens={turns * tokens}",
            *([f"model.path={model}"] if model else []),
        ],
    )


async def talk(row: Row, policy: Speaker, sandbox: Tools) -> Episode:
    """As many turns as there are."""
    try:
        await policy.generate()
        while True:
            await policy.generate(SAY)
    except EpisodeOver:
        return Episode({})


def sampler(engines: Sequence[Any], temperature: float, side: str) -> Turns:
    """Turns on one of the engines: by the problem, or one after the other."""
    calls = 0

    def turns(version: int, episode: str) -> Generate:
        async def generate(request: SamplingRequest) -> list[Completion]:
            nonlocal calls
            calls += 1
            engine = engines[(calls if side == SPREAD else request.prompt.index) % len(engines)]
            made: list[Completion] = await engine.generate(
                request.prompt.tokens, 1, request.seed, temperature, 0, request.max_tokens or 0
            )
            return made

        return generate

    return turns


def read_whole_contexts(engine: Any, on: dict[str, bool]) -> None:
    """Have `engine` compute whole contexts while `on["whole"]`."""
    inner = engine._llm.generate

    def generate(prompt: Any, params: Any, **more: Any) -> Any:
        params.skip_reading_prefix_cache = on["whole"]
        return inner(prompt, params, **more)

    engine._llm.generate = generate


def processor_s() -> float:
    """Processor time so far of this process and all below it, in seconds."""
    own = psutil.Process()
    times = [p.cpu_times() for p in (own, *own.children(recursive=True))]
    return sum(t.user + t.system for t in times)


async def once(config: Config, engines: Sequence[Any], side: str, episodes: int) -> Measured:
    tokenizer = load_tokenizer(config.model.path)
    made = Episodes(config, tokenizer, talk, NoTools(), lambda name, amount: None)
    turns = sampler(engines, config.rollout.temperature, side)
    for engine in engines:
        await engine._llm.reset_prefix_cache()
    before = [(e.load.prefix_queries, e.load.prefix_hits) for e in engines]
    cpu, wall = processor_s(), time.monotonic()
    requests = []
    for i in range(episodes):
        row = Row(i, f"{3 * i + 11}+{7 * i + 5}=?", "")
        requests.append(SamplingRequest(make_prompt(tokenizer, i, row, config.data), 1, seed=i, priority=0))
    found = await asyncio.gather(*(made.make(request, 0, turns) for request in requests))
    spent = processor_s() - cpu, time.monotonic() - wall
    for episode in found:
        assert isinstance(episode, list), episode
        assert len(episode[0].turns) == config.environment.max_turns
    queries, hits = (
        sum(now - was[i] for now, was in zip((getattr(e.load, name) for e in engines), before, strict=True))
        for i, name in enumerate(("prefix_queries", "prefix_hits"))
    )
    return Measured(*spent, queries, hits)


async def measure(config: Config, episodes: int, rounds: int, replicas: int) -> dict[str, list[Measured]]:
    from actors.generator.vllm_engine import Engine

    engines = [Engine(config, f"replica {i}") for i in range(replicas)]
    on = {"whole": False}
    for engine in engines:
        await engine.begin()
        read_whole_contexts(engine, on)
    sides = [WHOLE, HOME, SPREAD] if replicas > 1 else [WHOLE, HOME]
    found: dict[str, list[Measured]] = {side: [] for side in sides}
    for number in range(-1, rounds):  # the first one pays for one-time preparation
        turn = number % len(sides)
        for side in sides[turn:] + sides[:turn]:
            on["whole"] = side == WHOLE
            measured = await once(config, engines, side, episodes)
            if number >= 0:
                found[side].append(measured)
    for engine in engines:
        engine.shutdown()
    return found


def parser_of(description: str | None, episodes: int, rounds: int) -> argparse.ArgumentParser:
    """The options of a benchmark of conversations."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=episodes)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=40, help="most tokens of a turn")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--hidden", type=int, default=0, help="width of a model of random weights")
    parser.add_argument("--layers", type=int, default=4, help="its layers")
    return parser


@contextmanager
def configured(options: argparse.Namespace) -> Iterator[Config]:
    """The configuration of such conversations; a model of another shape is there while the block runs."""
    with tempfile.TemporaryDirectory() as name:
        model = None
        if options.hidden:
            model = str(Path(name) / "model")
            size = random_model(load("tiny").model.path, Path(model), options.hidden, options.layers)
            print(f"{size / 1e6:.1f} million parameters, random weights")
        yield configuration(options.turns, options.tokens, model)


def main() -> None:
    parser = parser_of(__doc__, episodes=48, rounds=5)
    parser.add_argument("--replicas", type=int, default=2)
    options = parser.parse_args()
    with configured(options) as config:
        found = asyncio.run(measure(config, options.episodes, options.rounds, options.replicas))
    whole = statistics.median(m.cpu_s for m in found[WHOLE])
    for side, measured in found.items():
        cpu = statistics.median(m.cpu_s for m in measured)
        share = sum(m.found for m in measured) / max(1, sum(m.tokens for m in measured))
        ratios = sorted(m.cpu_s / w.cpu_s for m, w in zip(measured, found[WHOLE], strict=True))
        wall = statistics.median(m.wall_s for m in measured)
        print(
            f"{side:24} {share:6.1%} of context found, {cpu:.2f} s of processor, ratio {cpu / whole:.2f} "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f}), {wall:.2f} s wall"
        )


if __name__ == "__main__":
    main()
