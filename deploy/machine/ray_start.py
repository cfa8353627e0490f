"""How a command starts Ray on this machine: its token, its sockets, its processes' signals. The only file of
deploy that uses Ray's private API."""

import os
import secrets
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil

from hora_rl.common.errors import RunError

LONGEST = 107
"""Bytes of a socket's path (`sun_path` of unix(7), without its final NUL)."""
OF_RAY = "ray/session_2026-01-02_03-04-05_678901_4194304/sockets/plasma_store"
OF_ENGINE = "hora-engine-12345678/01234567-89ab-cdef-0123-456789abcdef"
"""The longest path below the folder for temporary files, of Ray and of vLLM (a uuid)."""


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
    """The folder of this process's Ray session."""
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
        _write_once(file, secrets.token_hex(32))
    if open_to_others(file):
        with suppress(PermissionError):
            file.chmod(0o600)


def open_to_others(file: Path) -> bool:
    """Whether the file exists and other users have permissions on it."""
    return file.is_file() and bool(file.stat().st_mode & 0o077)


def _write_once(file: Path, text: str) -> None:
    """Write atomically and keep an existing file, because two runs may start at once."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, new = tempfile.mkstemp(dir=file.parent)  # created with mode 0600
    try:
        with os.fdopen(handle, "w") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        with suppress(FileExistsError):
            os.link(new, file)
    finally:
        os.unlink(new)
