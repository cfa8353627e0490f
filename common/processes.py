"""Process lifetime and memory, and this process's share of the machine."""

import ctypes
import gc
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

GROUPS = Path("/sys/fs/cgroup")
PR_SET_PDEATHSIG = 1  # linux/prctl.h
LIBC = ctypes.CDLL(None, use_errno=True)  # loaded here, because a forked child must only call

KEEP_FREED_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(256 * 2**20),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
    "MALLOC_MMAP_THRESHOLD_": str(256 * 2**20),
}
"""Environment variables that make glibc reuse freed memory. By default glibc returns large blocks and the
kernel zeroes new pages, a quarter of the coordinator's work at full size. Other allocators ignore them."""


def freeze_heap() -> None:
    """Call after all long-lived objects are loaded: garbage collections then skip them."""
    gc.collect()
    gc.freeze()


def die_with_parent(signal_: signal.Signals, parent: int) -> None:
    """Have the kernel send this process `signal_` when the thread of `parent` (a process id) that started it
    ends. Exits if that is dead already. Does nothing outside Linux."""
    if sys.platform != "linux":
        return
    if LIBC.prctl(PR_SET_PDEATHSIG, signal_, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(1)


@contextmanager
def background_thread(
    name: str, work: Callable[[threading.Event], object], limit_s: float | None = None
) -> Iterator[None]:
    """Run `work` in a daemon thread while the block runs; its end sets the event and waits up to
    `limit_s`."""
    done = threading.Event()
    thread = threading.Thread(target=work, args=(done,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(limit_s)


@contextmanager
def environment(settings: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def processors() -> int:
    """Processors this process may use: its affinity and its control group's quota (container, Slurm)."""
    have = float(len(os.sched_getaffinity(0)))
    for limits in (text.split() for text in _of_groups("cpu.max")):
        if limits[0] != "max":
            have = min(have, int(limits[0]) / int(limits[1]))
    return max(1, int(have))


def free_memory() -> float:
    """Free bytes of host memory, limited by this process's control group."""
    return min(psutil.virtual_memory().available, memory_left())


def memory_left() -> float:
    """Free bytes in this process's control groups, not counting cached files; infinite without a limit."""
    left = math.inf
    for most, now, stat in zip(
        *map(_of_groups, ("memory.max", "memory.current", "memory.stat")), strict=False
    ):
        if most.strip() != "max":
            cached = next(
                int(line.split()[1]) for line in stat.splitlines() if line.startswith("inactive_file ")
            )
            left = min(left, int(most) - int(now) + cached)
    return left


def _of_groups(file: str) -> list[str]:
    """The content of `file` in this process's control group (version 2) and its ancestors."""
    try:
        line = next(
            line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")
        )
    except (OSError, StopIteration):
        return []
    group = GROUPS / line.removeprefix("0::").strip().lstrip("/")
    folders = [p for p in (group, *group.parents) if p == GROUPS or GROUPS in p.parents]
    return [(folder / file).read_text() for folder in folders if (folder / file).is_file()]


def this_machine() -> str:
    """Boot id of the machine and pid namespace of this process; empty without /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
