"""SIGTERM and SIGHUP stop a command as Ctrl-C does. Slurm, Kubernetes, systemd and a closing terminal send
them.

The stop is done within GRACE_S, which Slurm (KillWait) and Kubernetes (terminationGracePeriodSeconds) give by
default before they kill. Further signals of these kinds are ignored meanwhile.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

GRACE_S = 30.0
STOPPING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """While the block runs, SIGTERM and SIGHUP raise SIGINT. An ignored SIGHUP stays ignored, as `nohup`
    wants it. An ignored SIGINT is heard again: a script ignores it for what it starts in the background."""
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, *STOPPING)}
    if before[signal.SIGINT] is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in STOPPING:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def starting_ray() -> Iterator[None]:
    """Around `ray.init`: its processes must outlive the terminal, to be stopped in order; and it replaces our
    handler of SIGTERM by one that prints a C++ stack and exits."""
    terminals = [stream for stream in (0, 1, 2) if os.isatty(stream)]
    term, hangup = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # processes inherit it
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, hangup)
        signal.signal(signal.SIGTERM, term)
    if hangup is _interrupt and not all(map(os.isatty, terminals)):
        signal.raise_signal(signal.SIGHUP)  # the terminal closed while nobody listened


@contextmanager
def undisturbed() -> Iterator[None]:
    """Around an orderly stop: whoever asks for it again is not heard, or it would be broken off. Handlers
    belong to the main thread; in another one nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {s: signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, *STOPPING)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def heard_afterwards() -> Iterator[None]:
    """Around the start of a process until it is known: a signal waits, or nobody would end what was just
    started. An ignored one stays ignored, for the process too. For the main thread."""
    heard: list[int] = []
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, *STOPPING)}
    listened = {s: handler for s, handler in before.items() if handler is not signal.SIG_IGN}
    for number in listened:
        signal.signal(number, lambda number, _frame: heard.append(number))
    try:
        yield
    finally:
        for number, handler in listened.items():
            signal.signal(number, handler)
    if heard:
        signal.raise_signal(heard[0])


def _interrupt(number: int, _frame: FrameType | None) -> None:
    for other in STOPPING:
        signal.signal(other, signal.SIG_IGN)
    if number == signal.SIGHUP:
        _leave_terminal()
    signal.raise_signal(signal.SIGINT)


def _leave_terminal() -> None:
    """Writing to a terminal that is gone is an error, which would end the stop before its end."""
    for stream in (sys.stdout, sys.stderr):
        fd = stream.fileno()
        if not os.isatty(fd) and _is_device(fd):
            os.dup2(os.open(os.devnull, os.O_WRONLY), fd)


def _is_device(fd: int) -> bool:
    """Whether it is a character device, as a terminal is, closed or not."""
    return stat.S_ISCHR(os.fstat(fd).st_mode)
