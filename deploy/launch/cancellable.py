"""A coroutine that another thread can cancel."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any


class Cancellable:
    """Runs coroutines in the calling thread until another thread calls `cancel`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self.cancelled = False

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of `work`. Raises CancelledError after `cancel`, also if it was called before."""
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            with self._lock:
                task = loop.create_task(work)
                self._running = loop, task
                if self.cancelled:
                    task.cancel()
            try:
                return loop.run_until_complete(task)
            finally:
                with self._lock:
                    self._running = None

    def cancel(self) -> None:
        with self._lock:
            self.cancelled = True
            if self._running is not None:
                loop, task = self._running
                loop.call_soon_threadsafe(task.cancel)
