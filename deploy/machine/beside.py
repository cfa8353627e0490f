"""A thread beside a block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def beside(
    name: str, work: Callable[[threading.Event], object], limit_s: float | None = None
) -> Iterator[None]:
    """Run `work` in a daemon thread called `name` while the block runs. Its event is set at the end of the
    block, which then waits for it, `limit_s` seconds at most."""
    done = threading.Event()
    thread = threading.Thread(target=work, args=(done,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(limit_s)
