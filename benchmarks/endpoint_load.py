"""What a run keeps of its rate while clients send requests to its endpoint without pause.

    python -m benchmarks.endpoint_load [--clients 40] [--turns 5] [--seconds 60]

One run of the demo at a learning rate of zero, so that its work does not change. It trains in turns alone and
with clients, each of which sends its next request as soon as the last one is answered or refused. The run has
the first half of the processors, the clients the other: they must not take what they are to measure. Prints
rollouts per second of each turn, and the median of the ratios of neighbouring turns.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from hora_rl.deploy.machine.ports import free_port

CHAT = {"messages": [{"role": "user", "content": "37+58=?"}]}
SETTLE_S = 5.0
WARM_STEPS = 5
SETTINGS = {
    "serve.endpoint": "true",
    "learner.steps": 20_000,
    "learner.optimizer.learning_rate": 1e-12,
    "learner.checkpoint_every": 1_000,
    "evaluation.path": "null",
    "run.name": "load",
}


def halves() -> tuple[list[int], list[int]]:
    """Processors of the run and of the clients."""
    every = sorted(os.sched_getaffinity(0))
    if len(every) < 2:
        raise SystemExit("one processor: clients would take the run's own; use a machine with two")
    return every[: len(every) // 2], every[len(every) // 2 :]


@contextmanager
def on(processors: list[int], *command: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process on these processors; interrupted at the end of the block."""
    pinned = ["taskset", "-c", ",".join(map(str, processors)), *command]
    with log.open("ab") as file, subprocess.Popen(pinned, stdout=file, stderr=file) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)


def ask(url: str, key: str, stream: bool, statuses: Counter[int]) -> None:
    """One client, for as long as the process lives."""
    with httpx.Client(timeout=300, headers={"Authorization": f"Bearer {key}"}) as client:
        while True:
            answer = client.post(f"{url}/v1/chat/completions", json={**CHAT, "stream": stream})
            statuses[answer.status_code] += 1


def clients(url: str, key_file: str, number: int) -> None:
    """Half of the clients stream. Prints their answers by status when it is interrupted."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    key, statuses = Path(key_file).read_text().strip(), Counter[int]()
    for i in range(number):
        threading.Thread(target=ask, args=(url, key, i % 2 == 1, statuses), daemon=True).start()
    try:
        signal.pause()
    except KeyboardInterrupt:
        print(json.dumps(statuses), flush=True)
        os._exit(0)  # the threads wait for answers


def figures(url: str) -> tuple[float, int, int]:
    """Time, rollouts sampled and steps trained so far."""
    status = httpx.get(f"{url}/status", timeout=60).json()
    return time.monotonic(), status["totals"]["rollouts_in"], status["step"]


def rate(url: str, seconds: float) -> float:
    """Rollouts per second over the next `seconds`."""
    time.sleep(SETTLE_S)
    began, before, _ = figures(url)
    time.sleep(seconds)
    ended, after, _ = figures(url)
    return (after - before) / (ended - began)


def until_warm(url: str, run: subprocess.Popen[bytes], log: Path) -> None:
    while True:
        if run.poll() is not None:
            raise SystemExit(f"the run ended:\n{log.read_text()[-3000:]}")
        try:
            if figures(url)[2] >= WARM_STEPS:
                return
        except (httpx.HTTPError, ValueError, KeyError):
            pass  # it is starting
        time.sleep(2.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--turns", type=int, default=5, help="pairs of turns, alone and with clients")
    parser.add_argument("--seconds", type=float, default=60.0, help="of one turn")
    options, console = parser.parse_args(), Console(width=110)
    ours, theirs = halves()
    url = f"http://127.0.0.1:{(port := free_port('127.0.0.1'))}"
    table = Table("turn", "alone, rollouts/s", "with clients", "ratio", "answers by status")
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        folder, log, said = Path(name), Path(name) / "run.log", Path(name) / "clients.log"
        every = {**SETTINGS, "telemetry.http_port": port, "run.folder": folder}
        settings = [part for k, v in every.items() for part in ("-s", f"{k}={v}")]
        key_file = folder / "load" / "token"
        load = f"from benchmarks.endpoint_load import clients as c; c{(url, str(key_file), options.clients)}"
        with on(ours, str(Path(sys.executable).with_name("hora")), "run", "tiny", *settings, log=log) as run:
            until_warm(url, run, log)
            for turn in range(options.turns):
                alone = rate(url, options.seconds)
                with on(theirs, sys.executable, "-c", load, log=said):
                    loaded = rate(url, options.seconds)
                ratios.append(loaded / alone)
                answers = said.read_text().splitlines()[-1]
                table.add_row(str(turn), f"{alone:.1f}", f"{loaded:.1f}", f"{ratios[-1]:.2f}", answers)
    console.print(table)
    console.print(f"median ratio {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
