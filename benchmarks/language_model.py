"""Tokens per second of one engine called directly, and of the same engine behind Serve, coordinator, verifier
and queue.

    python -m benchmarks.language_model [--preset smollm2] [--sequences 64 128] [--batches 2] [-s KEY=VALUE …]

Both sides sample the same prompts with the same settings, as many completions of each, on the threads that a
run leaves the generator beside its learner. Versions are published without training, so that generation alone
is measured; the pauses are those of real weight updates while sequences run. Processor seconds per 1,000
tokens say what the system adds where the machine is shared.
"""

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.console import Console

from hora_rl.actors.coordinator.sampling import sample_seed
from hora_rl.common.config import Config
from hora_rl.common.data.prompt_order import Mixture, mixed_rows
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.load import load
from hora_rl.common.model.pretrained import model_folder
from hora_rl.common.types import Phase
from hora_rl.common.weights.announcement import Manifest, advance, announce
from hora_rl.common.weights.weight_file import digest_of
from hora_rl.deploy.checks.hardware import on_processors
from hora_rl.deploy.monitor.reading import read_run

ENGINE = "VLLM"
"""How the names of vLLM's processes begin."""


@dataclass(frozen=True, slots=True)
class Speed:
    """`tokens` in `seconds`; processor seconds of vLLM's processes and of all others meanwhile."""

    tokens: int
    seconds: float
    engine: float
    others: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    def line(self, name: str) -> str:
        engine, others = (1000 * used / self.tokens for used in (self.engine, self.others))
        return (
            f"{name:<20}{self.rate:8.0f} tokens/s; processor seconds per 1,000 tokens: engine {engine:.2f}, "
            f"others {others:.2f}"
        )


class Clock:
    """Wall and processor time since it was made."""

    def __init__(self) -> None:
        self._began, self._used = time.monotonic(), _used()

    def speed(self, tokens: int) -> Speed:
        seconds, now = time.monotonic() - self._began, _used()
        engine, others = (after - before for after, before in zip(now, self._used, strict=True))
        return Speed(tokens, seconds, engine, others)


def _used() -> tuple[float, float]:
    """Processor seconds of vLLM's processes and of all others, this process and those below it."""
    used = [0.0, 0.0]
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
            used[not process.name().startswith(ENGINE)] += times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return used[0], used[1]


def direct(config: Config, batches: int, began: Callable[[], object] = lambda: None) -> Speed:
    """One engine given all requests of all batches at once: nothing would keep it fuller. `began` is called
    when it is warm."""
    from hora_rl.actors.coordinator.deployment import render_prompts
    from hora_rl.actors.generator.vllm_engine import Engine

    prompts = render_prompts(config)
    rollout, seed = config.rollout, config.run.seed
    # The requests of a shard under the uniform rule: G0 samples and G - G0 samples of every prompt.
    sizes: tuple[tuple[Phase, int], ...] = (
        ("A", rollout.pre_rollouts),
        ("B", rollout.group_size - rollout.pre_rollouts),
    )

    async def run() -> Speed:
        engine = Engine(config)
        await engine.begin()

        async def batch(number: int) -> int:
            rows = mixed_rows(number, rollout.prompts_per_batch, Mixture((len(prompts),)), seed)
            work = [
                engine.generate(
                    prompts[row].tokens, n, sample_seed(seed, e, row, phase, 0), rollout.temperature
                )
                for phase, n in sizes
                for e, row in rows
            ]
            return sum(len(c.tokens) for cs in await asyncio.gather(*work) for c in cs)

        await batch(0)  # the first call pays for one-time preparation
        began()
        clock = Clock()
        tokens = sum(await asyncio.gather(*(batch(number) for number in range(1, batches + 1))))
        speed = clock.speed(tokens)
        engine.shutdown()
        return speed

    return asyncio.run(run())


def through_the_system(config: Config, batches: int, folder: Path) -> tuple[Speed, list[float]]:
    """The same batches into the queue, and the seconds of each update's pause."""
    from hora_rl.common.weights.announcement import BroadcastClient
    from hora_rl.deploy.launch.stack import stack

    rollout = config.rollout
    with stack(config, folder, Console(quiet=True), train=True) as url:
        client, keys = connect(url), Keys(config.run.name)
        weights = folder / "w.safetensors"
        shutil.copy(Path(model_folder(config.model.path)) / "model.safetensors", weights)
        with weights.open("rb") as file:
            digest = digest_of(file)
        pauses: list[float] = []
        broadcast = BroadcastClient(config.weights.update_limit_s)

        def wait(batch: int) -> None:
            while client.hlen(keys.shards) < (batch + 1) * rollout.shards:
                time.sleep(0.1)

        def publish(version: int) -> None:
            manifest = Manifest(config.run.name, version, str(weights), digest, weights.stat().st_size)
            announce(client, manifest)
            broadcast.update(manifest.update_info(), version)
            pauses.extend(c["pause_s"] for c in broadcast.confirm(version))
            advance(client, config.run.name, version)

        def tokens() -> int:
            return int(read_run(client, config.run.name).totals["tokens_in"])

        wait(0)
        before, clock = tokens(), Clock()
        for number in range(1, batches + 1):
            publish(number)
            wait(number)
        return clock.speed(tokens() - before), pauses


def compare(config: Config, batches: int) -> str:
    """Both sides, one after the other; what they need, in lines."""
    with tempfile.TemporaryDirectory() as folder:
        alone = direct(config, batches)
        served, pauses = through_the_system(config, batches, Path(folder) / "run")
    used = (alone.engine + alone.others) / alone.tokens, (served.engine + served.others) / served.tokens
    return "\n".join(
        (
            f"{config.generator.max_sequences} sequences, {config.model.dtype}, threads "
            f"{config.generator.threads}",
            alone.line("engine alone"),
            served.line("through the system"),
            f"ratio {served.rate / alone.rate:.2f}; of processor time {used[0] / used[1]:.2f}; pause of an "
            f"update {statistics.median(pauses):.2f} s, longest {max(pauses):.2f} s, n = {len(pauses)}",
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="smollm2", help="or a file")
    parser.add_argument("--sequences", type=int, nargs="+", default=[64, 128], help="sampled at a time")
    parser.add_argument("--batches", type=int, default=2)
    parser.add_argument("-s", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    for sequences in options.sequences:
        settings = [
            "allocation.rule=uniform",  # draws as many completions of a prompt as the direct side
            "allocation.warmup.enabled=false",
            "rollout.max_staleness=1",
            "telemetry.http_port=0",
            f"learner.steps={options.batches + 1}",
            f"generator.max_sequences={sequences}",
        ]
        config = load(options.preset, [*options.overrides, *settings])
        print(compare(on_processors(config), options.batches), flush=True)


if __name__ == "__main__":
    main()
