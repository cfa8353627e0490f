"""DeepSpeed's C++ extension for CPUs, compiled under a lock that the kernel releases when the owner dies.

torch guards a build with a file named `lock`. A killed process leaves this file behind, and every later
process waits for ever. Here builds have a separate folder, and only the holder of its flock compiles there.
So a `lock` file in that folder is always stale.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import importlib.metadata
import os
import platform
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

import structlog

from hora_rl.common.errors import RunError

log = structlog.get_logger(__name__)
ROOT = "TORCH_EXTENSIONS_DIR"
OWNER, BATON = "owner", "lock"
POLL_S = 0.2
SAY_S = 60.0


def build_folder() -> Path:
    """The build folder for this Python, torch and DeepSpeed, below TORCH_EXTENSIONS_DIR if set."""
    spec = find_spec("deepspeed")
    what = [platform.python_version(), importlib.metadata.version("torch"), spec.origin if spec else ""]
    key = hashlib.blake2b(repr(what).encode(), digest_size=6).hexdigest()
    return _root() / "hora" / f"deepspeed-{importlib.metadata.version('deepspeed')}-{key}"


def compile_extensions(doing: Callable[[str], None]) -> None:
    """Load DeepSpeed's extension for CPUs into this process; compile first if needed.

    `doing` receives a description of the current wait. Raises RunError when the extension cannot be compiled
    here.
    """
    import deepspeed

    accelerator = deepspeed.accelerator.get_accelerator()
    builder, place = accelerator.create_op_builder("ShareMemCommBuilder"), build_folder()
    if builder is None or not deepspeed.ops.__compatible_ops__.get(builder.NAME, False):
        return  # as on GPUs, where DeepSpeed sets none either
    with owned(place, doing):
        doing(f"DeepSpeed's {builder.name} from {place}, compiled there where it is new")
        (place / builder.name / BATON).unlink(missing_ok=True)
        try:
            with builds_in(place):
                builder.load(verbose=False)  # DeepSpeed finds the loaded module later
        except (RuntimeError, OSError, ImportError) as error:
            raise RunError(
                f"DeepSpeed's {builder.name} cannot be compiled in {place} "
                f"({' '.join(str(error).split())[:300]}): a C++ compiler and ninja are needed, and that "
                "folder must be writable"
            ) from error


@contextmanager
def owned(place: Path, doing: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Hold `place` exclusively while the block runs. Waits for a process that holds the lock, and reports
    that process to `doing` and the log."""
    place.mkdir(parents=True, exist_ok=True)
    with (place / OWNER).open("a+") as file:
        began = said = time.monotonic()
        while not _try_lock(file):
            waits = f"{_owner(place)}, which compiles in {place}"
            doing(waits)
            if time.monotonic() - said > SAY_S:
                said = time.monotonic()
                log.warning("the start waits", for_what=waits, seconds=round(said - began))
            time.sleep(POLL_S)
        file.truncate(0)
        file.write(f"process {os.getpid()} of {socket.gethostname()}")
        file.flush()
        yield


@contextmanager
def builds_in(place: Path) -> Iterator[None]:
    """Make torch build in `place`, with the programs of this Python's environment first on PATH: ninja is one
    of them, and `.venv/bin/hora` is often called by its path."""
    before = {name: os.environ.get(name) for name in (ROOT, "PATH")}
    programs = os.pathsep.join((str(Path(sys.executable).parent), before["PATH"] or os.defpath))
    os.environ |= {ROOT: str(place), "PATH": programs}
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


def busy(place: Path) -> str | None:
    """The process that compiles in `place` now; None without one."""
    try:
        with (place / OWNER).open() as file:
            return None if _try_lock(file) else _owner(place)
    except FileNotFoundError:
        return None


def abandoned_locks() -> list[Path]:
    """torch's lock files below the user's build folder that no process of this machine has open: users of
    these builds wait for ever. HORA's are left out, because the next start removes them."""
    found = [Path(p) for p in (*glob.glob(f"{_root()}/*/{BATON}"), *glob.glob(f"{_root()}/*/*/{BATON}"))]
    opened = {_target(link) for link in glob.iglob("/proc/[0-9]*/fd/*")} if found else set()
    return [p for p in found if str(p.resolve()) not in opened]


def _root() -> Path:
    return Path(os.environ.get(ROOT) or Path.home() / ".cache" / "torch_extensions")


def _owner(place: Path) -> str:
    return (place / OWNER).read_text().strip() or "another process"


def _try_lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:  # closed by now, or another user's process
        return ""
