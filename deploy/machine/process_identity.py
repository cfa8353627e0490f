"""Unique identity of a process: boot of the machine, pid namespace, and start time in clock ticks since the
boot. Independent of the wall clock, which may be changed at any time. Linux only.
"""

import os
import tempfile
import time
from pathlib import Path

ZOMBIE = "Z"


def same_boot(one: str, other: str) -> bool:
    """Whether two ids of `this_machine` are containers on one machine."""
    return bool(one) and one.partition("/")[0] == other.partition("/")[0]


def start_ticks(pid: int) -> int | None:
    """Start of the living process `pid` in ticks since the boot; None if it has ended or is a zombie."""
    try:
        # The name in brackets may contain anything. Field 3 is the state, field 22 the start time.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0].decode() == ZOMBIE else int(fields[19])


def age_s(path: Path) -> float:
    """Seconds since `path` was written, by the clock of its disk, so independent of the writing machine."""
    return _disk_time(path.parent) - path.stat().st_mtime


def _disk_time(folder: Path) -> float:
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".clock-") as probe:
            return os.fstat(probe.fileno()).st_mtime
    except OSError:  # another user's folder: fall back to the local clock
        return time.time()
