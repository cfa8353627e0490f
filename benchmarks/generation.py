"""Tokens per second of the whole generation side against the same engine called directly, and the pause of an
update.

    python -m benchmarks.generation [--preset tiny] [--batches 3] [--hidden 512 --layers 8]

One run: one vLLM engine on its own, then one Serve replica behind coordinator, verifier, queue; the same
prompts, the same number of completions, the same settings. A learner's place is taken by publishing versions
without training, so that generation alone is measured; the pauses are those of real weight updates while
sequences are running.

With --hidden and --layers the preset's model makes place for one of that shape with random weights and the
same tokenizer: what the system adds is a cost per request and per token, so its share depends on what a token
costs the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console

from actors.coordinator.sampling import sample_seed
from common.config import Config
from common.keys import Keys
from common.load import load
from common.order import batch_rows
from common.redis import connect
from common.types import Phase
from common.weight_versions import Manifest, advance, announce
from deploy.monitor.run_state import read_run


def direct(config: Config, batches: int) -> float:
    """Tokens per second of one engine given all requests of all batches at once."""
    from actors.coordinator.deployment import render_prompts
    from actors.generator.vllm_engine import Engine
    from common.prompts import load_tokenizer

    prompts = render_prompts(config, load_tokenizer(config.model.path))
    rollout = config.rollout

    async def run() -> float:
        engine = Engine(config)
        await engine.label(0)

        async def batch(number: int) -> int:
            rows = batch_rows(number, rollout.prompts_per_batch, len(prompts), config.run.seed)
            # The requests of a shard under the uniform rule: G0 samples and G - G0 samples of every prompt.
            pre, additional = rollout.pre_rollouts, rollout.group_size - rollout.pre_rollouts
            sizes: list[tuple[Phase, int]] = [("A", pre), ("B", additional)]
            work = [
                engine.generate(
                    prompts[row].tokens,
                    n,
                    sample_seed(config.run.seed, e, row, phase, 0),
                    rollout.temperature,
                )
                for phase, n in sizes
                for e, row in rows
            ]
            return sum(len(c.tokens) for cs in await asyncio.gather(*work) for c in cs)

        await batch(0)  # the first call pays for one-time preparation
        began = time.monotonic()
        # All batches at once: nothing an engine could be given would keep it fuller.
        tokens = sum(await asyncio.gather(*(batch(number) for number in range(1, batches + 1))))
        seconds = time.monotonic() - began
        engine.shutdown()
        return tokens / seconds

    return asyncio.run(run())


def through_the_system(config: Config, batches: int, folder: Path) -> tuple[float, list[float]]:
    """Tokens per second into the queue over the same batches, and the seconds of each update's pause."""
    from deploy.launch.stack import stack
    from learner.weights.broadcast import BroadcastClient

    rollout = config.rollout
    with stack(config, folder, Console(quiet=True)) as url:
        client, keys = connect(url), Keys(config.run.name)
        weights = folder / "w.safetensors"
        shutil.copy(Path(config.model.path) / "model.safetensors", weights)
        digest = hashlib.sha256(weights.read_bytes()).hexdigest()
        pauses: list[float] = []
        broadcast = BroadcastClient(config.weights.update_limit_s)

        def wait(batch: int) -> None:
            while client.hlen(keys.shards) < (batch + 1) * rollout.shards:
                time.sleep(0.01)

        def publish(version: int) -> None:
            manifest = Manifest(config.run.name, version, str(weights), digest, weights.stat().st_size)
            announce(client, manifest)
            broadcast.update(manifest.update_info(), version)
            pauses.extend(c["pause_s"] for c in broadcast.confirm(version))
            advance(client, config.run.name, version)

        wait(0)
        before, began = read_run(client, config.run.name).totals["tokens_in"], time.monotonic()
        for number in range(1, batches + 1):
            publish(number)
            wait(number)
        seconds = time.monotonic() - began
        return (read_run(client, config.run.name).totals["tokens_in"] - before) / seconds, pauses


def random_model(like: str, folder: Path, hidden: int, layers: int) -> int:
    """Write a model of another shape and random weights, with the tokenizer of `like`; returns its
    parameters."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = AutoConfig.from_pretrained(like)
    shape.update({"hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": layers})
    shape.layer_types = ["full_attention"] * layers
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(shape)
    shutil.copytree(like, folder, ignore=shutil.ignore_patterns("config.json", "*.safetensors"))
    model.save_pretrained(folder)
    return int(model.num_parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument(
        "--rule", default="uniform", help="uniform draws as many completions per prompt as the direct side"
    )
    parser.add_argument("--hidden", type=int, default=0, help="width of a model of random weights")
    parser.add_argument("--layers", type=int, default=4, help="its layers")
    parser.add_argument("-s", "--set", action="append", default=[], help="section.key=value, as of hora run")
    options = parser.parse_args()
    config = load(
        options.preset,
        [
            *options.set,
            f"allocation.rule={options.rule}",
            "allocation.warmup.enabled=false",
            "rollout.max_staleness=1",
            "telemetry.http_port=0",
            f"learner.steps={options.batches + 1}",
            "queue.capacity=100000",
        ],
    )
    from deploy.launch.ports import free_port

    port = free_port()
    config = config.model_copy(update={"telemetry": config.telemetry.model_copy(update={"http_port": port})})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.hidden:
            size = random_model(config.model.path, folder / "model", options.hidden, options.layers)
            model = config.model.model_copy(update={"path": str(folder / "model")})
            config = config.model_copy(update={"model": model})
            print(f"{size / 1e6:.1f} million parameters, random weights")
        alone = direct(config, options.batches)
        served, pauses = through_the_system(config, options.batches, folder / "run")
    print(f"one engine, called directly: {alone:8.0f} tokens/s")
    print(
        f"through Serve, coordinator, verifier and queue: {served:8.0f} tokens/s, ratio {served / alone:.2f}"
    )
    print(
        f"pause of an update: median {statistics.median(pauses):.3f} s, longest {np.max(pauses):.3f} s, n = "
        f"{len(pauses)}"
    )


if __name__ == "__main__":
    main()
