"""Background threads with the lifetime of a `with` block."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def beside(
    name: str, work: Callable[[threading.Event], object], limit_s: float | None = None
) -> Iterator[None]:
    """Run `work` in a daemon thread called `name` while the block runs. The end of the block sets the event
    and waits up to `limit_s` seconds for the thread."""
    done = threading.Event()
    thread = threading.Thread(target=work, args=(done,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(limit_s)
