"""How a command starts Ray on this machine: its token, ports and sockets, its processes' signals, and its
end if one of them dies. The only file of deploy that uses Ray's private API."""

import os
import random
import secrets
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil

from hora_rl.common.config import TelemetryConfig
from hora_rl.common.errors import RunError
from hora_rl.common.processes import background_thread
from hora_rl.deploy.machine.record import RunFile, State
from hora_rl.deploy.machine.signals import asked_to_stop

LONGEST = 107
"""Bytes of a socket's path (`sun_path` of unix(7), without its final NUL)."""
OF_RAY = "ray/session_2026-01-02_03-04-05_678901_4194304/sockets/plasma_store"
OF_ENGINE = "hora-engine-12345678/01234567-89ab-cdef-0123-456789abcdef"
"""The longest path below the folder for temporary files, of Ray and of vLLM (a uuid)."""
# Above the ports of Ray's workers and below Linux's ephemeral range, which Ray's daemons use heavily: a free
# ephemeral port may be taken before Serve binds it.
CANDIDATES = range(20_000, 32_768)
WATCH_S = 0.02
HEARD_S = 2.0
"""Seconds for the main thread to receive a signal that a Ray process received first."""
NEEDED = ("raylet", "gcs_server")
LOGS_OF_RAY = {
    "RAY_ROTATION_MAX_BYTES": str(16 * 2**20),
    "RAY_ROTATION_BACKUP_COUNT": "1",
    "RAY_event_stats_print_interval_ms": "600000",
}
"""Smaller logs: by default Ray writes statistics every minute and keeps 3 GiB per log file."""


@contextmanager
def starting_ray() -> Iterator[None]:
    """Wrap `ray.init`: start its processes in separate sessions, and keep our SIGTERM handler, which Ray
    would replace by one that prints a C++ stack and exits."""
    from ray._private import services

    term, popen = signal.getsignal(signal.SIGTERM), services.ConsolePopen
    services.ConsolePopen = partial(popen, start_new_session=True)
    try:
        yield
    finally:
        services.ConsolePopen = popen
        signal.signal(signal.SIGTERM, term)


def on_loopback() -> dict[str, str]:
    """Make the next Ray node listen on loopback. Returns environment variables that do the same for Gloo and
    NCCL."""
    from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = False  # Ray may already have read its environment
    interfaces = psutil.net_if_addrs().items()
    loopback = next(name for name, at in interfaces if any(a.address == "127.0.0.1" for a in at))
    return dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), loopback)


def session_folder() -> Path:
    import ray

    return Path(ray._private.worker._global_node.get_session_dir_path())


def dead_processes() -> list[str]:
    """The kinds of this process's Ray node of which a process has ended."""
    import ray

    node = ray._private.worker._global_node
    return [] if node is None else [kind for kind, _ in node.dead_processes()]


def check_sockets() -> int:
    """The bytes of the longest path. Raises RunError if the folder for temporary files is too long, as one of
    a batch scheduler's job may be."""
    named = next((key for key in ("RAY_TMPDIR", "TMPDIR") if key in os.environ), "TMPDIR")
    places = ((named, os.environ.get(named, "/tmp"), OF_RAY), ("TMPDIR", tempfile.gettempdir(), OF_ENGINE))
    for key, folder, file in places:
        most, has = LONGEST - len(file) - 1, len(os.fsencode(folder))
        if has > most:
            raise RunError(
                f"{key} ({folder}): {has} bytes, and {'Ray' if file is OF_RAY else 'vLLM'} adds "
                f"{len(file) + 1} for its sockets, whose paths may have {LONGEST}: set {key} to a folder of "
                f"this machine of at most {most} bytes, as in {key}=/tmp"
            )
    return max(len(os.fsencode(os.path.join(folder, file))) for _, folder, file in places)


def token_file() -> Path:
    """Path of Ray's token: RAY_AUTH_TOKEN_PATH, or ~/.ray/auth_token."""
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    return Path(named) if named else Path.home() / ".ray" / "auth_token"


def keep_token_private(*, make: bool = False) -> None:
    """Restrict the token file to its owner. With `make`, create a missing file first, as `ray.init` would. A
    file of another user stays unchanged; `hora check --all` reports it."""
    file = token_file()
    elsewhere = "RAY_AUTH_TOKEN" in os.environ or os.environ.get("RAY_AUTH_MODE", "").lower() == "disabled"
    if make and not file.exists() and not elsewhere:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile("w", dir=file.parent) as new:  # created with mode 0600
            new.write(secrets.token_hex(32))
            new.flush()
            os.fsync(new.fileno())
            with suppress(FileExistsError):  # of another run that starts at the same time: it stays
                os.link(new.name, file)
    if open_to_others(file):
        with suppress(PermissionError):
            file.chmod(0o600)


def open_to_others(file: Path) -> bool:
    return file.is_file() and bool(file.stat().st_mode & 0o077)


def check_port(host: str, port: int) -> None:
    """Raise RunError if `port` cannot be bound on `host`."""
    try:
        _bind(host, port)
    except OSError as error:
        raise RunError(
            f"telemetry.http_port: {host}:{port} cannot be used ({error.strerror}); choose another with "
            "-s telemetry.http_port=N, or 0 for any free one"
        ) from None


def port_of(telemetry: TelemetryConfig) -> int:
    """The configured HTTP port, or a free one for 0."""
    return telemetry.http_port or free_port(telemetry.http_host)


def free_port(host: str = "127.0.0.1") -> int:
    """A free port on `host` outside the ephemeral range."""
    for port in random.sample(CANDIDATES, 100):
        with suppress(OSError):
            _bind(host, port)
            return port
    raise RunError(
        f"telemetry.http_host: no port of {host} from {CANDIDATES[0]} to {CANDIDATES[-1]} can be used"
    )


def _bind(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Serve does
        probe.bind((host, port))


def watched_node(file: RunFile | None) -> AbstractContextManager[None]:
    """Exit this process if Ray's node loses a required process while the block runs. Records the reason in
    `file` and prints it. Ray cannot restart a raylet, and without one calls hang."""
    return background_thread("ray-node", partial(_watch, file))


def _watch(file: RunFile | None, done: threading.Event) -> None:
    """Wait for the end of a required process of this command's Ray node. After a request to stop, any process
    counts: all were signalled, those without a handler exit first, and this process dies with the raylet's
    object store."""
    while not done.wait(WATCH_S):
        died = [kind for kind in dead_processes() if kind in NEEDED or asked_to_stop.is_set()]
        if died:
            _end(file, died[0])


def _end(file: RunFile | None, died: str) -> None:
    """Print and record the reason at once, because Ray ends this process at the next call to its raylet."""
    reason = (
        f"Ray's node on this machine ended (its process {died} died): look for what killed it, as short "
        "memory does"
    )
    if not asked_to_stop.is_set():
        _say(file, "failed", reason, f"hora: {reason}")
    if stopped := asked_to_stop.wait(HEARD_S):
        _say(file, "stopped", "interrupted", "\nstopped")
    os._exit(130 if stopped else 1)


def _say(file: RunFile | None, state: State, reason: str, line: str) -> None:
    resume = "" if file is None else f"; resume with: {file.read().resume}"
    print(f"{line}{resume}", file=sys.stderr, flush=True)
    if file is not None:
        file.end(state, reason)
