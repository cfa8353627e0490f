"""What grows in a run of the whole stack: engines, optimizer, Ray and Serve included.

    hora run tiny -s learner.steps=100000 -s evaluation.path=null -s run.name=long &
    python -m benchmarks.soak_run runs/long --samples samples.jsonl [--hours 1] [--every 10]

Only looks on, from outside: resident memory, open handles and number of processes of each part, Redis'
memory and connections, and the files of the run folder and of Ray's session. Ends with the run, after
`--hours`, or at Ctrl-C; then it prints what each quantity gained per 1,000 steps and per hour over the second
half, with a 95% interval. `--samples` alone prints that of samples that were taken before.

Ledger, plans, step records and `rollouts/` grow with the run on purpose. Nothing else may have a slope that
is clear of zero.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import redis
from rich.console import Console
from rich.table import Table

from benchmarks.soak import MIB, grown
from benchmarks.start import PROCESSES
from hora_rl.common.config import Config
from hora_rl.common.errors import RunError
from hora_rl.common.load import load
from hora_rl.common.redis import Redis, connect
from hora_rl.common.state import read_state
from hora_rl.deploy.runs.record import CONFIG, RunFile, redis_of

ENGINE = "VLLM::"
OTHERS = "Ray's other processes"
OUTSIDE = ("redis", "rollouts", "checkpoints", "weights", "logs")
"""Folders of a run that are counted alone; `logs` is Ray's session."""


def parts(root: psutil.Process) -> Iterator[tuple[str, psutil.Process]]:
    """Each process of a run with the part that it belongs to; a part's own children belong to it."""
    names = {root.pid: "hora run"}
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            if process.pid not in names:
                names[process.pid] = _part(" ".join(process.cmdline()), names.get(process.ppid()))
            yield names[process.pid], process


def _part(line: str, parent: str | None) -> str:
    if ENGINE in line:
        return "engine"
    named = next((name for word, name in PROCESSES.items() if word in line), None)
    own = parent not in (None, "hora run", OTHERS)  # a raylet's children are parts of their own
    return named or (f"{parent}'s workers" if own and parent is not None else OTHERS)


def of_processes(root: psutil.Process) -> dict[str, float]:
    """Sums over the processes of each part."""
    found: Counter[str] = Counter()
    for part, process in parts(root):
        with suppress(psutil.NoSuchProcess), process.oneshot():
            memory, handles = process.memory_info().rss, process.num_fds()
            found[f"{part}: resident memory, MiB"] += memory / MIB  # type: ignore[assignment]
            found[f"{part}: open handles"] += handles
            found[f"{part}: processes"] += 1
    return {name: float(value) for name, value in found.items()}


def of_redis(client: Redis) -> dict[str, float]:
    used, clients = client.info("memory")["used_memory"], client.info("clients")["connected_clients"]
    return {"Redis: memory in use, MiB": used / MIB, "Redis: clients": clients}


def of_disk(run: Path) -> dict[str, float]:
    """MiB of the run folder, and of Ray's session that `logs` leads to."""
    sizes = {name: _size((run / name).resolve().rglob("*")) for name in OUTSIDE}
    rest = (path for path in run.iterdir() if path.name not in OUTSIDE)
    sizes["the rest"] = sum(_size([path, *path.rglob("*")]) for path in rest)
    return {f"disk: {name}, MiB": size / MIB for name, size in sizes.items()}


def _size(files: Iterable[Path]) -> int:
    total = 0
    for file in files:
        with suppress(FileNotFoundError):  # it may be deleted while it is counted
            total += file.lstat().st_size if file.is_file() else 0
    return total


def watch(run: Path, config: Config, samples: Path, every_s: float, until: float) -> None:
    """Append a sample to `samples` every `every_s` seconds, up to the run's end or `until` (monotonic)."""
    root = psutil.Process(RunFile(run).read().pid)
    client = connect(redis_of(str(run))[0])
    with samples.open("a", encoding="utf-8") as file:
        while time.monotonic() < until:
            try:
                step = float(read_state(client, config.run.name).step)
                row = {"step": step, "seconds": time.time(), **of_processes(root), **of_redis(client)}
                file.write(json.dumps({**row, **of_disk(run)}) + "\n")
            except (psutil.NoSuchProcess, redis.exceptions.RedisError, RunError):
                return
            file.flush()
            time.sleep(every_s)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, nargs="?", help="folder of a run that is up")
    parser.add_argument("--samples", type=Path, required=True, help="a file of JSON lines")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two samples")
    options, console = parser.parse_args(), Console(width=120)
    if options.run is not None:
        config, until = load(str(options.run / CONFIG)), time.monotonic() + 3600 * options.hours
        with suppress(KeyboardInterrupt):
            watch(options.run, config, options.samples, options.every, until)
    rows = [json.loads(line) for line in options.samples.read_text(encoding="utf-8").splitlines()]
    seconds = [row.pop("seconds") for row in rows]
    hours = [(at - seconds[0]) / 3600 for at in seconds]
    by_time = [{**row, "step": 1000 * at} for row, at in zip(rows, hours, strict=True)]
    console.print(table_of(rows, by_time))
    first, last = rows[0]["step"], rows[-1]["step"]
    console.print(f"steps {first:.0f} to {last:.0f} in {hours[-1]:.2f} h, {len(rows)} samples")


def table_of(by_step: list[dict[str, float]], by_time: list[dict[str, float]]) -> Table:
    """`by_time` has thousandths of an hour in the place of steps. Without what stayed the same."""
    table = Table("quantity", "half way", "end", "per 1,000 steps", "per hour")
    hourly = {row.what: row for row in grown(by_time)}
    for row in grown(by_step):
        if row.slope or row.first != row.last:
            gains = [f"{g.slope:+.1f} ± {g.plus_minus:.1f}" for g in (row, hourly[row.what])]
            table.add_row(row.what, f"{row.first:.1f}", f"{row.last:.1f}", *gains)
    return table


if __name__ == "__main__":
    main()
