"""SIGTERM and SIGHUP stop a command as Ctrl-C does. Slurm, Kubernetes, systemd and a closing terminal send
them.

The stop is done within GRACE_S, which Slurm (KillWait) and Kubernetes (terminationGracePeriodSeconds) give by
default before they kill. Further signals of these kinds are ignored meanwhile.

Some senders signal the command's whole process group, as `timeout` and a terminal do. What the command starts
is in other sessions, so that the command stops it in order.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import FrameType

GRACE_S = 30.0
STOPPING = (signal.SIGTERM, signal.SIGHUP)
AGAIN_S = 5.0  # a library may swallow the interrupt, as imports do
TWICE_S = 1.0  # `timeout` signals the command and then its group: one request
Handler = Callable[[int, FrameType | None], object] | signal.Handlers
asked_to_stop = threading.Event()
"""Set while `stopped_by_signals` has heard one of STOPPING."""


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """While the block runs, SIGTERM and SIGHUP raise SIGINT. An ignored SIGHUP stays ignored, as `nohup`
    wants it. An ignored SIGINT is heard again: a script ignores it for what it starts in the background."""
    heard: dict[signal.Signals, Handler] = {s: _interrupt for s in _listened_to() if s in STOPPING}
    with _handled({signal.SIGINT: _Once(), **heard}):
        try:
            yield
        finally:
            asked_to_stop.clear()


@contextmanager
def starting_ray() -> Iterator[None]:
    """Around `ray.init`: its processes get sessions of their own, and our handler of SIGTERM, which Ray
    replaces by one that prints a C++ stack and exits, stays."""
    from ray._private import services

    term, popen = signal.getsignal(signal.SIGTERM), services.ConsolePopen
    services.ConsolePopen = partial(popen, start_new_session=True)
    try:
        yield
    finally:
        services.ConsolePopen = popen
        signal.signal(signal.SIGTERM, term)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore further signals during an orderly stop. Handlers belong to the main thread; in another one
    nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _handled(dict.fromkeys((signal.SIGINT, *STOPPING), signal.SIG_IGN)):
        yield


@contextmanager
def heard_afterwards() -> Iterator[None]:
    """Around the start of a process until it is known: a signal waits, or nobody would end what was just
    started. An ignored one stays ignored, for the process too. For the main thread."""
    heard: list[int] = []
    with _handled(dict.fromkeys(_listened_to(), lambda number, _frame: heard.append(number))):
        yield
    if heard:
        signal.raise_signal(heard[0])


def _listened_to() -> list[signal.Signals]:
    """Those of SIGINT and STOPPING that this process does not ignore."""
    return [s for s in (signal.SIGINT, *STOPPING) if signal.getsignal(s) is not signal.SIG_IGN]


@contextmanager
def _handled(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Install `handlers` while the block runs."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Once:
    """Handler of SIGINT: raises KeyboardInterrupt, but not for the same request twice."""

    _heard = -TWICE_S

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._heard >= TWICE_S:
            self._heard = now
            raise KeyboardInterrupt


def _interrupt(number: int, _frame: FrameType | None) -> None:
    asked_to_stop.set()
    for other in STOPPING:
        signal.signal(other, signal.SIG_IGN)
    if number == signal.SIGHUP:
        _leave_terminal()
    threading.Thread(target=_insist, name="insist", daemon=True).start()
    signal.raise_signal(signal.SIGINT)


def _insist() -> None:
    """Interrupt the main thread again until it leaves `stopped_by_signals`; `undisturbed` ignores it."""
    time.sleep(AGAIN_S)
    while asked_to_stop.is_set():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(AGAIN_S)


def _leave_terminal() -> None:
    """Writing to a terminal that is gone is an error, which would end the stop before its end."""
    for stream in (sys.stdout, sys.stderr):
        fd = stream.fileno()
        if not os.isatty(fd) and _is_device(fd):
            os.dup2(os.open(os.devnull, os.O_WRONLY), fd)


def _is_device(fd: int) -> bool:
    """Whether it is a character device, as a terminal is, closed or not."""
    return stat.S_ISCHR(os.fstat(fd).st_mode)
