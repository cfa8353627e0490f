"""Async rewards of a user: a service or a model as judge.

They mostly wait, so they share one event loop in a separate thread. Worker processes stay free for
computation, and a reward that blocks this loop does not block the replica's.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

AT_ONCE = 64
"""Maximum concurrent calls of one replica."""


class Judges:
    """Use from one event loop; `close()` ends the thread."""

    def __init__(self, time_limit_s: float) -> None:
        self._limit = time_limit_s
        self._places = asyncio.Semaphore(AT_ONCE)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="judges", daemon=True)
        self._thread.start()

    async def ask(self, function: Callable[..., Coroutine[Any, Any, T]], *args: object) -> T:
        """The result of `function` on the judges' loop. Raises TimeoutError after the time limit, and the
        errors of the function."""
        async with self._places:
            call = asyncio.run_coroutine_threadsafe(function(*args), self._loop)
            return await asyncio.wait_for(asyncio.wrap_future(call), self._limit)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
