"""Whole runs in the background whose parts can be killed: `hora run tiny` at a small size, on the real
stack."""

import ipaddress
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from hora_rl.deploy.machine.signals import GRACE_S
from hora_rl.deploy.runs.ended_run import audit_run
from hora_rl.evaluation.rollout_table import read_rollouts
from tests.support.browser import Browser
from tests.support.cluster import Cluster
from tests.support.ports import until
from tests.support.programs import run_well

HORA = str(Path(sys.executable).with_name("hora"))
SMALL = {"rollout.prompts_per_batch": 8, "rollout.group_size": 6, "rollout.pre_rollouts": 2}
SMALL |= {"rollout.shards": 2, "rollout.max_staleness": 1, "learner.checkpoint_every": 3}
SMALL |= {"allocation.warmup.enabled": "false", "evaluation.path": "null", "telemetry.http_port": 0}
# What each part's process calls itself.
PARTS = {
    "generator": "ray::ServeReplica:hora:generator",
    "engine": "VLLM::",
    "coordinator": "ray::ServeReplica:hora:coordinator",
    "verifier": "ray::ServeReplica:hora:verifier",
    "learner": "RayTrainWorker",
    "controller": "ray::TrainController",
    "raylet": "raylet/raylet",
    "redis": "redis-server",
}
PORTS_WITHOUT_A_SETTING = {"ray::ServeReplica"}  # Serve's gRPC port of a replica
# A worker has no name of its own: it is what its replica spawned.
WORKERS = {"verifier worker": ("verifier", "spawn_main")}


def options(settings: Mapping[str, object]) -> list[str]:
    """The words by which a command takes these settings."""
    return [word for key, value in settings.items() for word in ("-s", f"{key}={value}")]


def hora(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`hora WORDS` in the folder `cwd`; it must end well."""
    return run_well(HORA, *map(str, words), cwd=cwd, limit_s=500, COLUMNS="200")


class LiveRun:
    """One `hora run` of `steps` steps of `preset` in `folder`, and the processes that belong to it. It works
    in the folder `cwd`."""

    def __init__(
        self,
        folder: Path,
        steps: int,
        preset: str = "tiny",
        log: Path | None = None,
        cwd: Path | None = None,
        **settings: object,
    ) -> None:
        self.steps, self.run = steps, folder / "live"
        own = SMALL if preset == "tiny" else {"telemetry.http_port": 0}
        every = {**own, **settings, "learner.steps": steps, "run.folder": folder, "run.name": "live"}
        self._command = [HORA, "run", preset, *options(every)]
        self._log, self._cwd = log or folder / "live.log", cwd
        self._process: subprocess.Popen[bytes] | None = None
        self.family: set[psutil.Process] = set()

    def start(self, *more: str) -> None:
        with self._log.open("ab") as log:
            self._begin(*more, stdout=log, stderr=log)

    def _begin(self, *more: str, before: Sequence[str] = (), **how: Any) -> None:
        how |= {"cwd": self._cwd, "start_new_session": True, "env": {**os.environ, "COLUMNS": "200"}}
        self._process = subprocess.Popen([*before, *self._command, *more], **how)

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def output(self) -> str:
        """The steps so far and the end of what was said, for a failed test."""
        return f"{self.trained()} steps\n{self.said()[-4000:]}"

    def trained(self) -> int:
        """Steps that surviving records hold."""
        file = self.run / "steps.jsonl"
        return file.read_bytes().count(b"\n") if file.exists() else 0

    def until(self, steps: int, limit_s: float = 400.0) -> None:
        """Wait for `steps` steps; fail with the run's own words when it ends or stands still."""
        self.wait_for(lambda: self.trained() >= steps, f"{steps} steps", limit_s)

    def progressed(self, steps: int) -> bool:
        """Wait for `steps` more steps: False where the run has few left, or none. During a fault the learner
        may make some of those left from the queue alone."""
        wanted = self.trained() + steps
        if wanted > self.steps - 6:
            return False
        self.until(wanted, 900.0)
        return True

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal_group(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def redis_url(self) -> str:
        """Of the embedded Redis, once it is there."""
        url = self.run / "redis" / "url"
        self.wait_for(url.exists, f"a file {url}")
        return url.read_text().strip()

    def processes(self) -> list[psutil.Process]:
        """The launcher and all that descends from it; remembered, so that none can be left unseen."""
        assert self._process is not None
        try:
            root = psutil.Process(self._process.pid)
            alive = [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            alive = []
        self.family.update(alive)
        return alive

    def part(self, name: str) -> list[psutil.Process]:
        if name in WORKERS:
            replica, word = WORKERS[name]
            return _saying(word, [c for p in self.part(replica) for c in p.children(recursive=True)])
        return _saying(PARTS[name], self.processes())

    def wait_for(self, holds: Callable[[], bool], what: str, limit_s: float = 400.0) -> None:
        def held() -> bool:
            self.processes()
            return holds()

        until(held, lambda: f"no {what}: {self.output()}", limit_s, 0.05, self._process)

    def open_ports(self) -> set[str]:
        """Names of the processes that listen elsewhere than on loopback; every socket is printed."""
        found = set()
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                name = (process.cmdline() or [process.name()])[0]
                for socket in process.net_connections("tcp"):
                    if socket.status == psutil.CONN_LISTEN:
                        print(f"{name}: {socket.laddr.ip} {socket.laddr.port}")
                        if not ipaddress.ip_address(socket.laddr.ip.removeprefix("::ffff:")).is_loopback:
                            found.add(name.split(":hora")[0])
        return found

    def kill(
        self, name: str, chance: random.Random, how: signal.Signals = signal.SIGKILL, within_s: float = 1.0
    ) -> psutil.Process:
        """Send `how` to one process of the part, at a moment within the next `within_s` seconds; the
        process."""
        time.sleep(within_s * chance.random())
        while True:
            # It may be between two lives: workers often are, and the learner trains on while an engine loads.
            self.wait_for(lambda: bool(self.part(name)), f"process of {name}")
            with suppress(psutil.NoSuchProcess, IndexError):  # it ended meanwhile
                victim = chance.choice(self.part(name))
                victim.send_signal(how)
                return victim

    def kill_launcher(self) -> None:
        """SIGKILL the launcher alone, and wait until everything else has ended by itself.

        Ray's agents are the last: they try for a minute to tell a control store that is gone that the raylet
        is gone.
        """
        assert self._process is not None
        self.processes()
        self._process.kill()
        self._process.wait(20)
        self.assert_nothing_left(120.0)

    def kill_everything(self) -> None:
        for process in reversed(self.processes()):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(list(self.family), timeout=20)
        assert self._process is not None
        self._process.wait(20)

    def finish(self, limit_s: float = 600.0, status: int = 0) -> None:
        """Wait until the run ends, with this exit status."""

        def over() -> bool:
            self.processes()
            return not self.alive()

        until(over, self.output, limit_s, 0.2)
        assert self._process is not None
        assert self._process.returncode == status, self.output()

    def interrupt(self) -> None:
        """As Ctrl-C does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)

    def fail(self, limit_s: float = 400.0, status: int = 1) -> str:
        """What a run said that ended with `status`, and not well."""
        self.finish(limit_s, status)
        return self.said()

    def stopped(self) -> str:
        """What a run said that was told to stop: it ended in good order, with nothing left."""
        said = self.fail(GRACE_S, status=130)
        self.assert_nothing_left(30.0)
        assert json.loads((self.run / "run.json").read_text())["state"] == "stopped"
        return said

    def assert_exact(self) -> None:
        """Every step is there once, the audit finds nothing, and no process is left."""
        steps = [json.loads(line)["step"] for line in (self.run / "steps.jsonl").read_text().splitlines()]
        assert steps == list(range(self.steps))
        assert audit_run(self.run)
        assert read_rollouts(self.run, columns=["queued", "replica"])["queued"].null_count == 0
        self.assert_nothing_left()

    def assert_nothing_left(self, limit_s: float = 20.0) -> None:
        _, alive = psutil.wait_procs(list(self.family), timeout=limit_s)
        left = [p for p in alive if runs(p)]
        assert not left, left

    def __enter__(self) -> "LiveRun":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill_everything()
        for left in self.family:
            with suppress(psutil.NoSuchProcess):
                left.kill()


def runs(process: psutil.Process) -> bool:
    """Whether it lives. One that nobody has reaped does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _saying(word: str, processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those whose command line holds `word`."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # zombies too
            if word in " ".join(process.cmdline()):
                found.append(process)
    return found


@pytest.fixture
def live_run(tmp_path: Path) -> Iterator[Callable[..., LiveRun]]:
    """`live_run(steps, **settings)`: a run that has been started; ended with the test, whatever happens."""
    with ExitStack() as ending:
        yield lambda steps, **settings: ending.enter_context(LiveRun(tmp_path, steps, **settings))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def tab() -> Iterator[Callable[..., Browser]]:
    """`tab(url, **how)`: a tab of a browser, which is closed with the test file."""
    with ExitStack() as closing:

        def opened(url: str, **how: Any) -> Browser:
            browser = Browser(url, **how)
            closing.callback(browser.close)
            return browser

        yield opened
