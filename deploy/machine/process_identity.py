"""A process named so that no other can be taken for it: by this boot of the machine, its pid namespace, and
when it started, in clock ticks since the boot. None of these follows the wall clock, which may be set at any
time. Linux only.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

ZOMBIE = "Z"


def same_boot(one: str, other: str) -> bool:
    """Whether two machines by `this_machine` are containers of one."""
    return bool(one) and one.partition("/")[0] == other.partition("/")[0]


def start_ticks(pid: int) -> int | None:
    """When the living process `pid` started, in ticks since the boot; None where there is none, or it has
    ended unasked."""
    try:
        # The name in brackets may hold anything; state is the third field of the file, the start time the
        # 22nd.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0].decode() == ZOMBIE else int(fields[19])


def age_s(path: Path) -> float:
    """Seconds since `path` was written, by the clock of the disk that it lies on, whichever machine wrote
    it."""
    return _disk_time(path.parent) - path.stat().st_mtime


def _disk_time(folder: Path) -> float:
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".clock-") as probe:
            return os.fstat(probe.fileno()).st_mtime
    except OSError:  # the folder is another user's: the clock here must do
        return time.time()
