"""Detects an environment that blocks its replica's event loop. A blocked loop stops all episodes and prevents
their cancellation."""

import asyncio
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hora_rl.common.processes import background_thread

LONGEST_S = 60.0
"""Upper bound of the limit in seconds. After a longer block Serve replaces the replica without a reason."""
LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))


@contextmanager
def watchdog(limit_s: float, blocked: Callable[[str], None]) -> Iterator[None]:
    """Watch the current event loop while the block runs. If it is blocked for `limit_s` seconds, call
    `blocked(place)` once from a separate thread. `place` is the current line of the user's code."""
    loop, owner, limit_s = asyncio.get_running_loop(), threading.get_ident(), min(limit_s, LONGEST_S)

    def watch(over: threading.Event) -> None:
        while not over.wait(limit_s / 4):
            moved = threading.Event()
            try:
                loop.call_soon_threadsafe(moved.set)
            except RuntimeError:  # the loop is closed
                return
            if not moved.wait(limit_s) and not over.is_set():
                blocked(place_of(owner))
                return

    with background_thread("watchdog", watch, limit_s=0.0):
        yield


def place_of(thread: int) -> str:
    """Current line of the thread: the innermost frame outside the standard library and installed packages."""
    stack = traceback.extract_stack(sys._current_frames()[thread])
    frames = [frame for frame in stack if not frame.filename.startswith((*LIBRARIES, "<"))]
    frame = (frames or stack)[-1]
    return f"{frame.filename}:{frame.lineno} in {frame.name}"
