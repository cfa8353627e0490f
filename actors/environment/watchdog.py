"""Notices an environment that blocks its replica: no other episode moves on then, and none can be
cancelled."""

from __future__ import annotations

import asyncio
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable

LONGEST_S = 60.0
"""Serve replaces a replica that answers no health check for longer, and nobody would know why."""
LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))


class Watchdog:
    """Calls `blocked(place)` from a thread of its own, once, when the event loop that makes it did nothing
    for `limit_s` seconds. `place` is the line of a user's code where it stands."""

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
    """Where the thread stands: the innermost line that is not Python's or an installed package's."""
    stack = traceback.extract_stack(sys._current_frames()[thread])
    own = [frame for frame in stack if not frame.filename.startswith((*LIBRARIES, "<"))]
    frame = (own or stack)[-1]
    return f"{frame.filename}:{frame.lineno} in {frame.name}"
