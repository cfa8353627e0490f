"""Async rewards of a user: a service or a model as judge.

They wait most of the time, so they share one event loop in a separate thread. The worker processes stay free
for computation, and a reward that blocks this loop does not block the replica's.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

AT_ONCE = 64
"""Calls of one replica in flight."""


class Judges:
    """Use from one event loop; `close()` ends the thread."""

    def __init__(self, time_limit_s: float) -> None:
        self._limit = time_limit_s
        self._places = asyncio.Semaphore(AT_ONCE)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="judges", daemon=True)
        self._thread.start()

    async def ask(self, function: Callable[..., Coroutine[Any, Any, T]], *args: object) -> T:
        """The result of `function` on the judges' loop. Raises TimeoutError past the time limit, and the
        function's own errors."""
        async with self._places:
            call = asyncio.run_coroutine_threadsafe(function(*args), self._loop)
            return await asyncio.wait_for(asyncio.wrap_future(call), self._limit)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
