"""Where the seconds go until a started run has done its first optimizer step.

    python -m benchmarks.start [--preset tiny]   # a real run, stopped after its first step
    python -m benchmarks.start --replica         # one replica's engine by part, up to its second generation
    python -m benchmarks.start --imports         # what each process of a run imports

The run is watched from outside: processes, heartbeats and the run's hash in Redis. Processor seconds count
all threads of a process; on a busy machine they say more than the clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import redis
from rich.console import Console
from rich.table import Table

from hora_rl.common.config import Config
from hora_rl.common.errors import RunError
from hora_rl.common.keys import Keys
from hora_rl.common.load import load
from hora_rl.common.redis import connect, text_of

RUN, LIMIT_S, LOOK_S = "start", 1800.0, 0.1
# What each part's process calls itself, and how a table names it.
PROCESSES = {
    "redis-server": "Redis",
    "gcs_server": "Ray",
    "ServeController": "Serve's controller",
    "ServeReplica:hora:generator": "generator",
    "ServeReplica:hora:coordinator": "coordinator",
    "ServeReplica:hora:verifier": "verifier",
    "ServeReplica:hora:ingress": "ingress",
    "TrainController": "Ray Train's controller",
    "RayTrainWorker": "learner",
}
SUBPROCESSES = "Ray, and workers of the others"
IMPORTS = {
    "hora run, before Ray": "hora_rl.deploy.launch.local",
    "serve deploy's build": "hora_rl.deploy.app",
    "coordinator": "hora_rl.actors.coordinator.deployment",
    "verifier": "hora_rl.actors.verifier.deployment",
    "ingress": "hora_rl.deploy.monitor.ingress",
    "generator": "hora_rl.actors.generator.deployment,hora_rl.actors.generator.vllm_engine",
    "learner, file": "ray.train,deepspeed,hora_rl.learner.train",
    "learner, gloo or nccl": "ray.train,deepspeed,hora_rl.learner.weights.transfer_group",
}
LARGE = ("torch", "transformers", "pandas", "ray", "vllm", "deepspeed")


@dataclass(slots=True)
class Watched:
    """What was seen of a run: `marks` are seconds since its start, `processor` seconds by process id."""

    began: float
    marks: dict[str, float] = field(default_factory=dict)
    processor: dict[int, tuple[str, float]] = field(default_factory=dict)

    def note(self, event: str, at: float | None = None) -> None:
        """The first time of an event; now, unless `at` (seconds since the epoch) is given."""
        self.marks.setdefault(event, (time.time() if at is None else at) - self.began)

    def of_parts(self) -> dict[str, float]:
        """Processor seconds of each part."""
        total: dict[str, float] = {}
        for part, seconds in self.processor.values():
            total[part] = total.get(part, 0.0) + seconds
        return total


def spans(marks: dict[str, float]) -> list[tuple[str, float, float]]:
    """(event, when, seconds since the event before it), in order of time."""
    ordered = sorted(marks.items(), key=lambda mark: mark[1])
    before = [0.0, *(at for _, at in ordered)]
    return [(event, at, at - last) for (event, at), last in zip(ordered, before, strict=False)]


def watch_run(preset: str, folder: Path) -> Watched:
    """Start `hora run` in `folder`, and stop it after its first step."""
    settings = {"run.folder": folder, "run.name": RUN, "telemetry.http_port": 0}
    command = [str(Path(sys.executable).with_name("hora")), "run", preset]
    command += [word for key, value in settings.items() for word in ("-s", f"{key}={value}")]
    with (folder / "log").open("wb") as log:
        seen = Watched(time.time())
        process = psutil.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            _watch(process, seen, folder)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(120)
    return seen


def _watch(process: psutil.Popen, seen: Watched, folder: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while "first optimizer step" not in seen.marks:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RunError(f"the run made no step:\n{(folder / 'log').read_text(errors='replace')[-3000:]}")
        _look_at_processes(process, seen)
        _look_at_redis(seen, folder / RUN)
        time.sleep(LOOK_S)


def _look_at_processes(root: psutil.Popen, seen: Watched) -> None:
    for process in (root, *root.children(recursive=True)):
        try:
            line, used = " ".join(process.cmdline()), process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        part = "hora run" if process.pid == root.pid else _part(line)
        seen.processor[process.pid] = (part, used.user + used.system)
        if part in PROCESSES.values():
            seen.note(f"{part}: process")


def _part(line: str) -> str:
    return next((name for word, name in PROCESSES.items() if word in line), SUBPROCESSES)


def _look_at_redis(seen: Watched, run_dir: Path) -> None:
    """Before Redis is up, and while it starts, there is nothing to see."""
    url, keys = run_dir / "redis" / "url", Keys(RUN)
    if not url.exists():
        return
    try:
        client = connect(url.read_text(), retries=0)
        with client:
            for name, beat in client.hgetall(keys.parts).items():
                kind = text_of(name).partition("/")[0]
                seen.note(f"{kind}: first heartbeat", json.loads(beat)["seen"])
            if client.exists(keys.groups):
                seen.note("first group in the queue")
            if int(client.hget(keys.state, "step") or 0) >= 1:
                seen.note("first optimizer step")
    except (RunError, redis.exceptions.RedisError):
        return


@dataclass(frozen=True, slots=True)
class Part:
    """Of a replica's start; `memory_mib` is the peak so far."""

    what: str
    seconds: float
    processor_s: float
    memory_mib: int


def parts_of_a_replica(config: Config) -> Iterator[Part]:
    """One engine in this process, from its imports on."""

    def timed(what: str, do: Callable[[], object]) -> Part:
        began, used = time.monotonic(), time.process_time()
        do()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        return Part(what, time.monotonic() - began, time.process_time() - used, peak)

    yield timed("imports", _import_engine)
    from hora_rl.actors.coordinator.deployment import render_prompts
    from hora_rl.actors.generator.vllm_engine import Engine
    from hora_rl.common.prompts import load_tokenizer

    prompt = render_prompts(config, load_tokenizer(config.model.path))[0].tokens
    made: list[Engine] = []
    with asyncio.Runner() as runner:

        async def start() -> None:
            made.append(Engine(config))
            await made[0].begin()

        async def sample() -> None:
            await made[0].generate(prompt, 4, 0, config.rollout.temperature)

        yield timed("engine: model, cache, warm-up", lambda: runner.run(start()))
        yield timed("first generation", lambda: runner.run(sample()))
        yield timed("second generation", lambda: runner.run(sample()))
        made[0].shutdown()


def _import_engine() -> None:
    import hora_rl.actors.generator.deployment
    import hora_rl.actors.generator.vllm_engine  # noqa: F401


@dataclass(frozen=True, slots=True)
class Imported:
    """Processor seconds and peak memory of a process that imports some modules, and which of LARGE they
    bring."""

    processor_s: float
    memory_mib: int
    large: tuple[str, ...]


def imported(modules: str) -> Imported:
    """Import `modules`, separated by commas, in a new process."""
    script = (
        "import importlib, json, resource, sys\n"
        f"for name in {modules.split(',')!r}: importlib.import_module(name)\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        f"large = [m for m in {LARGE!r} if m in sys.modules]\n"
        "print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss // 1024, large]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    seconds, memory, large = json.loads(done.stdout.strip().splitlines()[-1])
    return Imported(seconds, memory, tuple(large))


def shown(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds until the first optimizer step.")
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--replica", action="store_true")
    parser.add_argument("--imports", action="store_true")
    options, console = parser.parse_args(), Console(width=110)
    if options.imports:
        found = {part: imported(modules) for part, modules in IMPORTS.items()}
        rows = [[p, f"{i.processor_s:.1f}", f"{i.memory_mib}", ", ".join(i.large)] for p, i in found.items()]
        console.print(shown("imports", ("process", "processor s", "MiB", "large packages"), rows))
    elif options.replica:
        parts = parts_of_a_replica(load(options.preset))
        rows = [[p.what, f"{p.seconds:.1f}", f"{p.processor_s:.1f}", str(p.memory_mib)] for p in parts]
        console.print(shown("one replica", ("part", "s", "processor s", "MiB"), rows))
    else:
        with tempfile.TemporaryDirectory() as folder:
            seen = watch_run(options.preset, Path(folder))
        rows = [[event, f"{at:.1f}", f"{since:.1f}"] for event, at, since in spans(seen.marks)]
        console.print(shown("a started run", ("event", "at, s", "since the one before, s"), rows))
        used = sorted(seen.of_parts().items(), key=lambda part: -part[1])
        rows = [[part, f"{seconds:.1f}"] for part, seconds in used]
        console.print(shown("until then", ("part", "processor s"), rows))
    sys.stdout.flush()
    os._exit(0)  # an engine's threads would hold the process


if __name__ == "__main__":
    main()
