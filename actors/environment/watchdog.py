"""Detects an environment that blocks its replica's event loop. A blocked loop stops all episodes and prevents
their cancellation."""

import asyncio
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable

LONGEST_S = 60.0
"""Upper bound of the limit in seconds. After a longer block Serve replaces the replica without a reason."""
LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))


class Watchdog:
    """Watches the current event loop. If the loop is blocked for `limit_s` seconds, calls `blocked(place)`
    once from a separate thread. `place` is the current line of the user's code."""

    def __init__(self, limit_s: float, blocked: Callable[[str], None]) -> None:
        self._loop, self._owner = asyncio.get_running_loop(), threading.get_ident()
        self._limit_s, self._blocked = min(limit_s, LONGEST_S), blocked
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(self._limit_s / 4):
            moved = threading.Event()
            try:
                self._loop.call_soon_threadsafe(moved.set)
            except RuntimeError:  # the loop is closed
                return
            if not moved.wait(self._limit_s) and not self._stopped.is_set():
                self._blocked(place_of(self._owner))
                return


def place_of(thread: int) -> str:
    """Current line of the thread: the innermost frame outside the standard library and installed packages."""
    stack = traceback.extract_stack(sys._current_frames()[thread])
    frames = [frame for frame in stack if not frame.filename.startswith((*LIBRARIES, "<"))]
    frame = (frames or stack)[-1]
    return f"{frame.filename}:{frame.lineno} in {frame.name}"
