"""Run folders: the record of a run (`run.json`), its configuration, and how to stop it.
docs/reference/run-folder.md shows the layout.

`run.json` is replaced atomically. `redis/url` holds the address of an embedded Redis. Only the owner may read
the files with its password and the run's token.
"""

import json
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import structlog
from rich.console import Console

from hora_rl.common.config import Config
from hora_rl.common.console import say, working
from hora_rl.common.errors import RunError
from hora_rl.common.files import replace_text
from hora_rl.common.live.redis import has_password
from hora_rl.common.load import dump_yaml
from hora_rl.common.processes import background_thread, this_machine
from hora_rl.deploy.machine.signals import asked_to_stop, undisturbed

log = structlog.get_logger(__name__)
State = Literal["running", "finished", "failed", "stopped"]
RUN, CONFIG, URL = "run.json", "config.yaml", "redis/url"
STOP_LIMIT_S = 120.0
BEAT_S, SILENCE_S = 10.0, 60.0


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Content of run.json. Times are seconds since the epoch. `reason` tells why the run ended, `resume` is
    the command to resume it, `seen` the launcher's last heartbeat. `machine` and `ticks` identify the process
    across restarts: boot and pid namespace, and start in clock ticks since the boot, independent of the wall
    clock. `silent_s` is the age of the record when read, `weights` a fingerprint of the initial policy."""

    run: str
    state: State
    pid: int
    http_port: int | None = None
    started: float = 0.0
    ended: float | None = None
    reason: str = ""
    host: str = ""
    resume: str = ""
    seen: float = 0.0
    weights: str = ""
    machine: str = ""
    ticks: int = 0
    silent_s: float = 0.0

    @property
    def elsewhere(self) -> bool:
        """Whether the launcher is on another machine or in another container, with invisible processes."""
        here = this_machine()
        if self.machine == here:
            return False
        other_container = bool(self.machine) and self.machine.partition("/")[0] == here.partition("/")[0]
        return (bool(self.host) and self.host != socket.gethostname()) or other_container

    @property
    def alive(self) -> bool:
        """Whether the launcher still runs: the same process of the same boot. A launcher elsewhere counts as
        running while it updates `seen`."""
        if self.state != "running":
            return False
        if self.elsewhere:
            return self.silent_s < SILENCE_S
        return self.machine == this_machine() and self.ticks == start_ticks(self.pid)


class RunFile:
    """`run.json` of one run folder. The launcher writes it; commands read it."""

    def __init__(self, run_dir: Path | str, on_end: Callable[[State, str], None] | None = None) -> None:
        """`on_end(state, reason)` is called when this object records the end of the run."""
        self._on_end = on_end
        self.folder = Path(run_dir)
        self.path = self.folder / RUN
        self._lock = threading.Lock()

    def start(
        self, run: str, pid: int, *, http_port: int | None = None, resume: str = "", weights: str = ""
    ) -> None:
        """Record that process `pid` of this machine starts `run`."""
        self._write(
            RunRecord(
                run,
                "running",
                pid,
                http_port=http_port,
                started=time.time(),
                host=socket.gethostname(),
                resume=resume,
                seen=time.time(),
                weights=weights,
                machine=this_machine(),
                ticks=start_ticks(pid) or 0,
            )
        )

    def end(self, state: State, reason: str = "") -> None:
        with self._lock:  # a later heartbeat must not overwrite it
            self._write(replace(self.read(), state=state, ended=time.time(), reason=reason))
        if self._on_end is not None:
            self._on_end(state, reason)

    @contextmanager
    def recorded(
        self, run: str, resume: str, console: Console, *, http_port: int | None = None, weights: str = ""
    ) -> Iterator[None]:
        """Record that `run` runs, and at the end of the block how it ended. Prints how to resume it."""
        self.refuse_if_alive()
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # Background jobs of scripts ignore SIGINT, but `hora stop` sends SIGINT.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self.start(run, os.getpid(), http_port=http_port, resume=resume, weights=weights)
        try:
            with background_thread("run-record", self._beat):
                yield
        except BaseException as error:
            with undisturbed():
                # Ray Train turns an interrupt into an exit; other signalled parts fail with various errors.
                if isinstance(error, KeyboardInterrupt | SystemExit) or asked_to_stop.is_set():
                    self.end("stopped", "interrupted")
                    say(console, f"\nstopped; resume with: {resume}")
                    raise SystemExit(130) from None
                self.end("failed", str(error))
                say(console, f"the run is kept in {self.folder}; resume with: {resume}")
                raise
        with undisturbed():
            self.end("finished")

    def refuse_if_alive(self) -> None:
        """Raise RunError if a launcher is alive in this folder."""
        if self.path.exists() and (record := self.read()).alive:
            raise RunError(
                f"{self.folder}: {record.run} is up already (process {record.pid} on "
                f"{record.host or 'this machine'}); `hora stop {self.folder}` ends it"
            )

    def _beat(self, done: threading.Event) -> None:
        trouble = ""
        while not done.wait(BEAT_S):
            try:
                with self._lock:
                    self._write(replace(self.read(), seen=time.time()))
                trouble = ""
            except (OSError, RunError) as error:  # retried: a full disk may get room
                if str(error) != trouble:
                    trouble = str(error)
                    log.warning("run record not written", folder=str(self.folder), error=trouble)

    def read(self) -> RunRecord:
        """Read run.json. Raises RunError if it is missing or invalid."""
        try:
            values = json.loads(self.path.read_text())
            return replace(RunRecord(**values), silent_s=age_s(self.path))
        except (FileNotFoundError, NotADirectoryError):
            raise RunError(
                f"{self.folder}: no run here ({RUN} is missing); `hora runs` lists the runs there are"
            ) from None
        except (ValueError, TypeError) as error:
            raise RunError(
                f"{self.path}: not a run's record ({error}); it was edited, or another version of hora wrote "
                "it"
            ) from None

    def ending(self) -> str | None:
        """How the run ended, in words; None for a live run or without a run."""
        if not self.path.exists() or (record := self.read()).alive:
            return None
        ended = f"{record.run} {_past(record)}"
        return ended if record.state == "finished" else f"{ended}; resume with: {record.resume}"

    def embeds_redis(self) -> bool:
        """Whether a `hora run` with an embedded Redis is alive. A `hora train` records no HTTP port; its
        folder may hold the address of an earlier run."""
        if not self.path.exists() or not (self.folder / URL).exists():
            return False
        record = self.read()
        return record.alive and record.http_port is not None

    def redis_url(self) -> str:
        """Address of the embedded Redis. Raises RunError if the run has none or has ended."""
        record, path = self.read(), self.folder / URL
        if not record.alive:
            raise RunError(
                f"{self.folder}: nothing to watch, the run {_past(record)}; `hora runs` shows its last step, "
                f"{self.folder}/tensorboard its curves"
            )
        try:
            return path.read_text().strip()
        except FileNotFoundError:
            raise RunError(
                f"{path} is missing: the run was not started by `hora run`, or its Redis never came up; "
                "name the Redis in queue.url or HORA_REDIS_URL"
            ) from None
        except PermissionError:
            raise RunError(f"{path}: only the user who started the run may read it") from None

    def _write(self, record: RunRecord) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_text(self.path, json.dumps(asdict(replace(record, silent_s=0.0)), indent=1) + "\n")


def with_absolute_folder(config: Config) -> Config:
    """The configuration with an absolute run.folder, valid in any working directory."""
    folder = str(Path(config.run.folder).resolve())
    return config.model_copy(update={"run": config.run.model_copy(update={"folder": folder})})


def write_config(run_dir: Path, config: Config) -> None:
    """Write RUN/config.yaml, readable only by the owner if it may contain a secret (queue.url,
    telemetry.on_alert)."""
    run_dir.mkdir(parents=True, exist_ok=True)
    secret = has_password(config.queue.url or "") or config.telemetry.on_alert
    mode = 0o600 if secret else 0o666
    replace_text(run_dir / CONFIG, dump_yaml(config), mode)


def stop(run_dir: Path | str, limit_s: float = STOP_LIMIT_S) -> str:
    """Stop a running `hora run` or `hora train` like Ctrl-C, so that it can be resumed. Returns a message.

    Raises RunError if no run is alive here, or if it does not end within `limit_s` seconds.
    """
    file = RunFile(run_dir)
    record = file.read()
    if record.state != "running":
        raise RunError(f"{file.folder}: the run is not running: it {_past(record)}")
    if record.elsewhere and record.alive:
        raise RunError(f"{file.folder}: the run is on {record.host}; stop it there")
    if not record.alive:
        file.end("failed", f"process {record.pid} is gone without a word")
        raise RunError(
            f"{file.folder}: the launcher (process {record.pid}) is gone already; resume with {record.resume}"
        )
    os.kill(record.pid, signal.SIGINT)
    deadline = time.monotonic() + limit_s
    with working(f"stopping {record.run}"):
        while record.alive:
            if time.monotonic() > deadline:
                raise RunError(
                    f"{file.folder}: process {record.pid} has not ended {limit_s:g} s after the request; "
                    f"look at {file.folder}/logs, or end it with kill {record.pid}"
                )
            time.sleep(0.1)
    return f"{record.run} stopped; resume with: {record.resume}"


def _past(record: RunRecord) -> str:
    return {
        "running": "ended without a word",
        "finished": "finished",
        "failed": f"failed ({record.reason})",
        "stopped": "was stopped",
    }[record.state]


def start_ticks(pid: int) -> int | None:
    """Start of the living process `pid` in ticks since the boot; None if it has ended or is a zombie."""
    try:
        # The name in brackets may contain anything. Field 3 is the state, field 22 the start time.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] == b"Z" else int(fields[19])


def age_s(path: Path) -> float:
    """Seconds since `path` was written, by the clock of its disk, so independent of the writing machine."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".clock-") as probe:
            now = os.fstat(probe.fileno()).st_mtime
    except OSError:  # another user's folder: fall back to the local clock
        now = time.time()
    return now - path.stat().st_mtime
