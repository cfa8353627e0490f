"""Whether an engine makes progress: requests are open, and sequences get tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Progress:
    """`still_s`: seconds for which requests have been open without a token for any of them; 0 when none is
    open. `clock` gives seconds and never runs backwards."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open = 0
        self._moved_at = clock()

    @contextmanager
    def request(self) -> Iterator[None]:
        """A request is open inside this block."""
        if not self._open:
            self.moved()
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    def moved(self) -> None:
        """A sequence got a token, or one may be expected only from now on."""
        self._moved_at = self._clock()

    @property
    def still_s(self) -> float:
        return self._clock() - self._moved_at if self._open else 0.0
