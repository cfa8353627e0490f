"""Stop a command on SIGTERM and SIGHUP as on Ctrl-C. Slurm, Kubernetes, systemd and closing terminals send
these signals.

A stop takes at most GRACE_S, the default before Slurm (KillWait) and Kubernetes
(terminationGracePeriodSeconds) kill. Further signals are ignored during the stop.

`timeout` and terminals signal the command's process group. Child processes run in separate sessions, so that
only the command stops them, in order.
"""

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
AGAIN_S = 5.0  # libraries may swallow an interrupt, for example during imports
SETTLE_S = 0.5
"""Seconds between a signal and the stop. If Ray's processes were signalled too (systemd, Slurm), they end
meanwhile, and so `watched_node` ends the command; a later call to them would end it with status 1 and no
word."""
TWICE_S = 1.0  # `timeout` signals the command and then its group for one request
Handler = Callable[[int, FrameType | None], object] | signal.Handlers
asked_to_stop = threading.Event()
"""Set as soon as the process gets one of STOPPING within `stopped_by_signals`, until that block ends. The
handlers run up to a second later where the main thread waits for Ray."""


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Raise SIGINT on SIGTERM and SIGHUP while the block runs. An ignored SIGHUP stays ignored (`nohup`). An
    ignored SIGINT is enabled, because scripts ignore it for background jobs."""
    over = threading.Event()
    interrupt = partial(_interrupt, over)
    heard: dict[signal.Signals, Handler] = {s: interrupt for s in _listened_to() if s in STOPPING}
    with _handled({signal.SIGINT: _Once(), **heard}), _heard_at_once():
        try:
            yield
        finally:
            over.set()


@contextmanager
def _heard_at_once() -> Iterator[None]:
    """Set `asked_to_stop` by the bytes that the interpreter writes as signals come, in a thread. Clear it at
    the end."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    thread = threading.Thread(target=_listen, args=(read,), name="signals", daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(write)
        thread.join()
        os.close(read)
        asked_to_stop.clear()


def _listen(read: int) -> None:
    while came := os.read(read, 1):
        if came[0] in STOPPING:
            asked_to_stop.set()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore further signals during an orderly stop. No effect outside the main thread, which owns the
    handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _handled(dict.fromkeys((signal.SIGINT, *STOPPING), signal.SIG_IGN)):
        yield


@contextmanager
def heard_afterwards() -> Iterator[None]:
    """Delay signals while a process is started and registered, so that a stop also ends that process. Ignored
    signals stay ignored. Only for the main thread."""
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
    """SIGINT handler that raises KeyboardInterrupt once per request."""

    _heard = -TWICE_S

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._heard >= TWICE_S:
            self._heard = now
            raise KeyboardInterrupt


def _interrupt(over: threading.Event, number: int, _frame: FrameType | None) -> None:
    asked_to_stop.set()  # the thread may not have run yet
    for other in STOPPING:
        signal.signal(other, signal.SIG_IGN)
    if number == signal.SIGHUP:
        _leave_terminal()
    time.sleep(SETTLE_S)
    threading.Thread(target=_insist, args=(over,), name="insist", daemon=True).start()
    signal.raise_signal(signal.SIGINT)


def _insist(over: threading.Event) -> None:
    """Repeat the interrupt until the main thread leaves `stopped_by_signals`. `undisturbed` ignores it."""
    while not over.wait(AGAIN_S):
        os.kill(os.getpid(), signal.SIGINT)


def _leave_terminal() -> None:
    """Redirect output from a closed terminal to /dev/null, because a failed write would abort the stop."""
    for stream in (sys.stdout, sys.stderr):
        fd = stream.fileno()
        if not os.isatty(fd) and stat.S_ISCHR(os.fstat(fd).st_mode):  # an open or closed terminal
            os.dup2(os.open(os.devnull, os.O_WRONLY), fd)
