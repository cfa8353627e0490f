"""Measures whether an engine with open requests generates tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Progress:
    """`still_s` is the time in seconds without a token while requests are open; 0 without open requests.
    `clock` returns seconds and is monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open = 0
        self._moved_at = clock()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request as open during the block."""
        if not self._open:
            self.moved()
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    def moved(self) -> None:
        """Restart the clock: a sequence got a token, or decoding can only start now."""
        self._moved_at = self._clock()

    @property
    def still_s(self) -> float:
        return self._clock() - self._moved_at if self._open else 0.0
