"""Ties between processes, and the machine that they are on."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h
LIBC = ctypes.CDLL(None, use_errno=True)  # loaded here: a forked child must do no more than call


def die_with_parent(signal_: signal.Signals, parent: int | None = None) -> None:
    """Have the kernel send this process `signal_` when the thread that started it ends.

    With `parent` (a process id) exit at once where that one is dead already. Does nothing where the kernel is
    not Linux.
    """
    if sys.platform != "linux":
        return
    if LIBC.prctl(PR_SET_PDEATHSIG, signal_, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def this_machine() -> str:
    """The boot of this machine and the pid namespace of this process; empty where there is no /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
