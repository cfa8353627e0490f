"""The process that programs are forked from: single-threaded, without secrets in its memory or environment.

    request ─► fork ─► own user ─► limits ─► no privileges ─► Landlock ─► seccomp ─► the program's first line

Started as `python -I -S -c LAUNCH` with an empty environment. A fork costs a third of a new interpreter, and
leaves no exec to allow. Only the standard library is used here, of any Python from 3.9: where this one cannot
be read by another user, the system's own interpreter stands in.

Messages on one SOCK_SEQPACKET socket: first the layers that hold; then per program a request with its
descriptors (stdin, stdout, stderr, source, and pipes that become 3 and on) and an answer. `STOP` ends the
program that runs; so does the caller's end, after which this process ends too.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from types import ModuleType
from typing import NoReturn

from actors.verifier.sandbox import landlock, layers, seccomp

LAUNCH = """\
import importlib, sys
sys.path.insert(0, sys.argv[1])
importlib.import_module(sys.argv[2]).serve(int(sys.argv[3]), sys.argv[4].split(), sys.argv[5].split())
"""

STOP = b"stop"
MOST = 1 << 16
FIXED = 4
"""Descriptors of every request: stdin, stdout, stderr, source."""
SET_UP_FAILED = 97
THREAD_STACK = 8 << 20
"""Not the C library's guess, which is the host's limit of stacks: a few such could be all of a program's
memory."""
PRELOADED = (
    *("bisect", "collections", "dataclasses", "datetime", "decimal", "fractions", "functools", "heapq"),
    *("itertools", "math", "operator", "random", "re", "string", "threading", "typing"),
)
"""Imported once, for what programs import most."""


def serve(descriptor: int, preload: list[str], refused: list[str]) -> NoReturn:
    """Answer requests until the caller closes its end."""
    sock = socket.socket(fileno=descriptor)
    held = layers.held(set(refused))
    user = None if held["uid"] else layers.own_user()  # first: inside, every zygote is process 1
    if not held["namespaces"]:
        _enter_namespaces(sock)
    for name in (*PRELOADED, *preload):
        importlib.import_module(name)
    sys.path.pop(0)
    threading.stack_size(THREAD_STACK)
    gc.freeze()  # or every program's collections would copy the memory that it shares with this process
    box = _Box(sock, held, user)
    sock.send(json.dumps({"layers": held, "python": sys.executable}).encode())
    while True:
        data, descriptors, _, _ = socket.recv_fds(sock, MOST, 16)
        if not data:
            os._exit(0)
        if data != STOP:  # one that came too late finds nothing to stop
            source = box.run(json.loads(data), descriptors)
            if source is not None:
                _run_as_script(source)


class _EndOnFailure:
    """Around what a fork does before it is the program: whatever fails, it must not go on as a second
    zygote. `said` is told why."""

    def __init__(self, said: int) -> None:
        self._said = said

    def __enter__(self) -> None:
        """Nothing to do before the block."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            try:
                os.write(self._said, f"{type(error).__name__}: {error}"[:500].encode())
            finally:
                os._exit(SET_UP_FAILED)


class _Box:
    """Runs one program at a time."""

    def __init__(self, sock: socket.socket, held: dict[str, str], user: int | None) -> None:
        self._sock = sock
        self._held = {name for name, why in held.items() if not why}
        self._rules = landlock.ruleset() if "landlock" in self._held else None
        self._user = user

    def run(self, limits: dict[str, float], descriptors: list[int]) -> bytes | None:
        """In the zygote: answer how the program ended, and None. In the program: its source."""
        ready, said = os.pipe()
        zygote, began = os.getpid(), time.monotonic()
        pid = os.fork()
        if pid == 0:
            with _EndOnFailure(said):
                return self._become_program(limits, descriptors, said, zygote)
        for one in (*descriptors, said):
            os.close(one)
        ended_by = self._wait(pid, limits["wall"])
        _, status, usage = os.wait4(pid, 0)
        with os.fdopen(ready, "rb") as told:
            trouble = told.read().decode(errors="replace") or "ended before it began"
        answer = {
            "status": os.waitstatus_to_exitcode(status),
            "over": ended_by == "clock",
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "wall_s": time.monotonic() - began,
            "trouble": "" if trouble == "1" or ended_by == "caller" else trouble,
        }
        try:
            self._sock.send(json.dumps(answer).encode())
        except OSError:  # the caller is gone
            os._exit(0)
        return None

    def _wait(self, pid: int, wall: float) -> str:
        """Until the program ends. What ended it: itself, the clock, or its caller, who stopped it or is
        gone."""
        gone = os.pidfd_open(pid)
        try:
            ready, _, _ = select.select([gone, self._sock.fileno()], [], [], wall)
            if self._sock.fileno() in ready:
                self._sock.recv(MOST)
            if gone in ready:
                return "itself"
            os.kill(pid, signal.SIGKILL)
            return "caller" if ready else "clock"
        finally:
            os.close(gone)

    def _become_program(
        self, limits: dict[str, float], descriptors: list[int], said: int, zygote: int
    ) -> bytes:
        with os.fdopen(descriptors.pop(FIXED - 1), "rb") as file:
            source = file.read()
        said, rules = _placed(descriptors, said, self._rules)
        os.setsid()
        os.chdir("/")
        layers.first_to_be_killed()
        if self._user is not None:
            layers.become(self._user)
        layers.die_with(zygote)
        threads = self._threads(int(limits["threads"]))
        layers.limit(limits, threads)
        layers.no_capabilities()
        layers.no_new_privileges()
        if rules is not None:
            landlock.restrict(rules)
            os.close(rules)
        _fresh_streams()
        seccomp.install(layers.machine(), os.getpid(), threads is not None)
        os.write(said, b"1")
        os.close(said)
        return source

    def _threads(self, wanted: int) -> int | None:
        """What RLIMIT_NPROC is to be. The kernel counts by user, and never for root."""
        if self._user is not None:
            return wanted
        if os.geteuid() == 0:
            return None
        return wanted + 2 if "namespaces" in self._held else layers.threads_of_the_machine()


def _enter_namespaces(sock: socket.socket) -> None:
    """Go on as process 1 of new namespaces. The process outside only waits: when it ends, or this one does,
    the kernel ends whatever is inside."""
    layers.enter_namespaces()
    pid = os.fork()
    if pid:
        sock.close()  # so that the caller sees the end of the one inside
        os.waitpid(pid, 0)
        os._exit(0)
    layers.die_with(0)


def _placed(descriptors: list[int], said: int, rules: int | None) -> tuple[int, int | None]:
    """The program's descriptors become 0, 1, 2, …; of all others the two that are still needed stay."""
    import fcntl

    high = [fcntl.fcntl(one, fcntl.F_DUPFD, 100) for one in descriptors]
    high_said = fcntl.fcntl(said, fcntl.F_DUPFD, 100)
    high_rules = None if rules is None else fcntl.fcntl(rules, fcntl.F_DUPFD, 100)
    os.closerange(0, 100)
    for number, one in enumerate(high):
        os.dup2(one, number)
        os.close(one)
    return high_said, high_rules


def _fresh_streams() -> None:
    """Python's own streams, over the new descriptors."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        stream = open(number, mode, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _run_as_script(source: bytes) -> NoReturn:
    """Run the program and end as a script does: its threads awaited, its exit functions called, its buffers
    written. Not by the interpreter's own end, which takes longer than most programs."""
    status: object = 0
    try:
        exec(compile(source, "main.py", "exec"), _fresh_main())
    except SystemExit as end:
        status = end.code
    except BaseException:  # noqa: BLE001  the program may raise anything
        sys.excepthook(*sys.exc_info())
        status = 1
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr, sys.__stdout__):
        if stream is not None and not stream.closed:
            stream.flush()
    os._exit(status & 0xFF if isinstance(status, int) else status is not None)


def _fresh_main() -> dict[str, object]:
    """A new `__main__`, in which a program is what it would be as a script."""
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    sys.argv = ["main.py"]
    return main.__dict__
