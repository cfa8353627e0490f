"""What watching costs: a real Redis, a producer and consumer of real groups, and 20 readers.

    python -m benchmarks.monitoring            # about two minutes

Three ways to watch: nobody, 20 page clients of one server, 20 terminals that each read Redis. Rounds are
interleaved. The cost is the processor time that the server and Redis spend beyond what nobody's watching
takes, against the whole machine: what a run that keeps every core busy would lose. It does not depend on what
else the machine does, as throughput by the clock would. Then the time from a push to an open stream, and
sizes.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from common.redis import connect
from deploy.launch.ports import free_port
from deploy.launch.redis_server import RedisServer
from deploy.monitor.run_state import read_run
from tests.support.synthetic_run import SyntheticRun, config_of

READERS, ROUNDS, ROUND_S, RATE = 20, 5, 8.0, 20.0
WAYS = ("nobody", "pages", "terminals")
SERVER = (
    "import sys; from deploy.monitor import serve_page; "
    "serve_page(sys.argv[1], sys.argv[2], '127.0.0.1', int(sys.argv[3]))"
)
# Readers are on other machines as a rule: in processes of their own, their work is not the system's.
PAGES = """
import asyncio, httpx, sys, time
async def one(client):
    asked = 0
    async with client.stream("GET", sys.argv[1] + "/events") as stream:
        async for line in stream.aiter_lines():
            if time.monotonic() - asked > 5:
                asked = time.monotonic()
                await client.get(sys.argv[1] + "/history")
async def main():
    async with httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=50)) as client:
        await asyncio.gather(*(one(client) for _ in range(int(sys.argv[2]))))
asyncio.run(main())
"""
TERMINALS = """
import sys, threading, time
from common.redis import connect
from deploy.monitor.run_state import read_run
def one():
    client = connect(sys.argv[1])
    while True:
        read_run(client, sys.argv[2])
        time.sleep(1)
threads = [threading.Thread(target=one) for _ in range(int(sys.argv[3]))]
[t.start() for t in threads]
"""


class Stage:
    """Redis, a run, and how it is watched."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.config = config_of("bench", learner={"steps": 10**6, "checkpoint_every": 5})
        self.run = SyntheticRun(server.url, self.config, length=100)
        self.batch = 0

    def cycle(self) -> int:
        """One batch through the queue; returns its groups."""
        asyncio.run(self.run.generate(self.batch))
        self.run.train(self.batch)
        self.run.beat(self.batch)
        self.batch += 1
        # The ledger of a long run is read whole by the stand-in for a learner; a real one keeps it in memory.
        self.run.redis.hdel(self.run.keys.ledger, *[str(b) for b in range(self.batch - 20, self.batch - 10)])
        self.run.redis.hset(self.run.keys.state, "durable_step", self.batch // 5 * 5)
        return self.config.rollout.prompts_per_batch

    @contextmanager
    def watched(self, way: str) -> Iterator[psutil.Process | None]:
        """Readers of one kind while the block runs; yields the server's process where there is one."""
        started: list[subprocess.Popen[bytes]] = []
        try:
            page = None
            if way == "pages":
                url, process = serve(self.server.url)
                started.append(process)
                page = psutil.Process(process.pid)
                started.append(subprocess.Popen([sys.executable, "-c", PAGES, url, str(READERS)]))
            elif way == "terminals":
                arguments = [self.server.url, "bench", str(READERS)]
                started.append(subprocess.Popen([sys.executable, "-c", TERMINALS, *arguments]))
            if started:
                time.sleep(4.0)
            yield page
        finally:
            for process in reversed(started):
                process.kill()
                process.wait()


def serve(redis_url: str) -> tuple[str, subprocess.Popen[bytes]]:
    port = free_port()
    process = subprocess.Popen([sys.executable, "-c", SERVER, redis_url, "bench", str(port)])
    url = f"http://127.0.0.1:{port}"
    while True:
        try:
            if httpx.get(f"{url}/healthz").status_code == 200:
                return url, process
        except httpx.TransportError:
            time.sleep(0.05)


def paced(stage: Stage, page: psutil.Process | None) -> float:
    """Processor seconds per second of Redis and the page's server at RATE groups a second."""
    redis = psutil.Process(stage.server.pid)

    def spent() -> float:
        return sum(sum(p.cpu_times()[:2]) for p in (redis, page) if p is not None)

    before, began, groups = spent(), time.monotonic(), 0
    while time.monotonic() - began < ROUND_S:
        groups += stage.cycle()
        time.sleep(max(0.0, groups / RATE - (time.monotonic() - began)))
    return (spent() - before) / (time.monotonic() - began)


def latencies(stage: Stage, count: int) -> tuple[list[float], dict[str, int]]:
    """Seconds from a push to its event on an open stream, and sizes in bytes."""
    url, process = serve(stage.server.url)
    try:
        sizes = {"page": len(httpx.get(url).content), "history": len(httpx.get(f"{url}/history").content)}
        found: list[float] = []
        arrived: dict[int, float] = {}

        def follow() -> None:
            with (
                suppress(httpx.RemoteProtocolError),
                httpx.stream("GET", f"{url}/events", timeout=None) as stream,
            ):
                for line in stream.iter_lines():
                    if line.startswith("data: {"):
                        sizes["event"] = len(line)
                        arrived[json.loads(line.removeprefix("data: "))["state"]["step"]] = time.monotonic()

        threading.Thread(target=follow, daemon=True).start()
        time.sleep(2.0)
        for i in range(count):
            stage.cycle()
            done = time.monotonic()
            while stage.batch not in arrived:
                time.sleep(0.005)
            found.append(arrived[stage.batch] - done)
            time.sleep(0.13 * (i % 7))
        return found, sizes
    finally:
        process.kill()
        process.wait()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, RedisServer(Path(folder)) as server:
        stage = Stage(server)
        loads: dict[str, list[float]] = {w: [] for w in WAYS}
        stage.cycle()
        for _ in range(ROUNDS):
            for way in WAYS:
                with stage.watched(way) as page:
                    loads[way].append(paced(stage, page))
        report(stage, loads)


def report(stage: Stage, loads: dict[str, list[float]]) -> None:
    cores = os.cpu_count() or 1
    print(f"{ROUNDS} interleaved rounds of {ROUND_S:g} s, {cores} cores, {READERS} readers; medians (range)")
    for way in WAYS:
        added = [(load - none) / cores for load, none in zip(loads[way], loads["nobody"], strict=True)]
        print(
            f"{way:10} at {RATE:g} groups/s Redis and server use {1000 * statistics.median(loads[way]):5.1f} "
            f"ms/s; for watching {statistics.median(added):.2%} of the machine ({min(added):.2%} to "
            f"{max(added):.2%})"
        )
    client: Any = connect(stage.server.url)
    times = []
    for _ in range(200):
        began = time.perf_counter()
        read_run(client, "bench")
        times.append(time.perf_counter() - began)
    print(f"one reading: {1000 * statistics.median(times):.2f} ms")
    found, sizes = latencies(stage, 25)
    print(
        f"push to open stream: median {statistics.median(found):.2f} s, worst of {len(found)} "
        f"{max(found):.2f} s"
    )
    print(", ".join(f"{name} {size / 1024:.1f} KiB" for name, size in sizes.items()))


if __name__ == "__main__":
    main()
