"""Tokens per second of an evaluation through Serve against vLLM called directly on the same requests, in one
run.

    python -m benchmarks.evaluation [--model deploy/demo/model] [--problems 100] [--samples 64]
        [--replicas 1 2] [--rounds 3]

Direct: one engine in this process, given all requests at once; nothing is verified or written. Through Serve:
`evaluate` as `hora eval` calls it, with every completion verified and every sample on disk, on each number of
replicas in turn. Same prompts, seeds, request sizes and engine settings; the completions are compared, so
both sides do the same work. Start-up and a first small round are not timed. Rounds follow each other on the
same engine; the median counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from rich.console import Console

from common.config import Config
from common.load import load
from common.types import Prompt
from deploy.launch.evaluation import in_flight, load_benchmark
from evaluation.benchmarks import find_benchmark
from evaluation.evaluate import evaluate
from evaluation.sample_loop import request_seed

WARM_UP = 16


def direct(config: Config, problems: list[Prompt], samples: int, rounds: int) -> tuple[list[float], int]:
    """Tokens per second of each round, and the tokens of one."""
    from actors.generator.vllm_engine import Engine

    size = config.rollout.samples_per_request

    async def draw(engine: Engine, n: int, seed: int) -> int:
        calls = [
            engine.generate(
                p.tokens, min(size, n - first), request_seed(seed, p.index, first), config.rollout.temperature
            )
            for first in range(0, n, size)
            for p in problems
        ]
        return sum(len(c.tokens) for found in await asyncio.gather(*calls) for c in found)

    async def run() -> tuple[list[float], int]:
        engine = Engine(config)
        await engine.label(0)
        await draw(engine, WARM_UP, 1)
        rates, tokens = [], 0
        for _ in range(rounds):
            began = time.monotonic()
            tokens = await draw(engine, samples, config.run.seed)
            rates.append(tokens / (time.monotonic() - began))
        engine.shutdown()
        return rates, tokens

    return asyncio.run(run())


def through_serve(
    config: Config, problems: list[Prompt], samples: int, rounds: int, folder: Path
) -> tuple[list[float], int]:
    """The same through `evaluate`, from Serve handles to lines on disk."""
    from ray import serve

    from actors.calls import generator_calls, verifier_calls
    from deploy.app import APP
    from deploy.launch.stack import stack

    with stack(config, folder, Console(quiet=True), train=False):
        generate = generator_calls(serve.get_deployment_handle("generator", APP), config, 0)
        score = verifier_calls(serve.get_deployment_handle("verifier", APP), config)

        def draw(name: str, n: int, seed: int) -> int:
            counts = asyncio.run(
                evaluate(
                    problems,
                    generate,
                    score,
                    n,
                    folder / f"{name}.jsonl",
                    about={"benchmark": name},
                    seed=seed,
                    samples_per_request=config.rollout.samples_per_request,
                    in_flight=in_flight(config),
                )
            )
            return int(counts.tokens.sum())

        draw("warm-up", WARM_UP, 1)
        rates, tokens = [], 0
        for number in range(rounds):
            began = time.monotonic()
            tokens = draw(f"round-{number}", samples, config.run.seed)
            rates.append(tokens / (time.monotonic() - began))
    return rates, tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="deploy/demo/model")
    parser.add_argument("--problems", type=int, default=100, help="held-out additions")
    parser.add_argument("--samples", type=int, default=64, help="N")
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    console = Console(soft_wrap=True)
    settings = [f"model.path={options.model}", "telemetry.http_port=0"]
    config = load("tiny", settings)
    problems = load_benchmark(config, find_benchmark("arithmetic"), console)[: options.problems]
    alone, expected = direct(config, problems, options.samples, options.rounds)
    base = statistics.median(alone)
    rows = [{"side": "vLLM, direct", "replicas": 1, "rates": alone, "ratio": 1.0}]
    for replicas in options.replicas:
        scaled = load("tiny", [*settings, f"generator.replicas={replicas}"])
        with tempfile.TemporaryDirectory() as folder:
            rates, tokens = through_serve(scaled, problems, options.samples, options.rounds, Path(folder))
        if abs(tokens - expected) > 0.02 * expected:
            raise SystemExit(f"{tokens} tokens through Serve, {expected} directly: not the same work")
        rows.append(
            {
                "side": "evaluate",
                "replicas": replicas,
                "rates": rates,
                "ratio": statistics.median(rates) / base,
            }
        )
    console.print(
        f"{len(problems)} problems x {options.samples} samples, {expected} tokens, {os.cpu_count()} CPUs"
    )
    for row in rows:
        console.print(json.dumps(row))


if __name__ == "__main__":
    main()
