"""Ends an engine that hangs while it starts. vLLM waits for its processes as long as they live."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil


@contextmanager
def ended_when_still(still_s: float) -> Iterator[None]:
    """During the block, kill the processes that this one started by multiprocessing once all of them used no
    processor time for `still_s`: an engine that loads, compiles or polls uses some. vLLM then raises."""
    over = threading.Event()
    threading.Thread(target=_watch, args=(over, still_s), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _watch(over: threading.Event, still_s: float) -> None:
    before: dict[int, float] = {}
    while not over.wait(still_s):
        now = dict(_seconds())
        if now and now == before:
            for child in multiprocessing.active_children():
                child.kill()
        before = now


def _seconds() -> Iterator[tuple[int, float]]:
    """Processor seconds of each child and its descendants, by process id."""
    for child in multiprocessing.active_children():
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(child.pid)
            for each in (process, *process.children(recursive=True)):
                times = each.cpu_times()
                yield each.pid, times.user + times.system
