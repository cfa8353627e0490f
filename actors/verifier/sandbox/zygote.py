"""The process from which programs are forked: single-threaded, without secrets in its memory or environment.

    request ─► fork ─► own user ─► limits ─► no privileges ─► Landlock ─► seccomp ─► the program's first line

Started as `python -I -S -c LAUNCH` with an empty environment. A fork costs a third of a new interpreter, and
needs no execve. Uses only the standard library of Python 3.9 or later: if other users cannot read this
Python, the system's interpreter is used.

Messages on one SOCK_SEQPACKET socket: first the working layers; then per program a request with descriptors
(stdin, stdout, stderr, source, and pipes that become 3 and up) and an answer. `STOP` ends the running
program. If the caller ends, the program and this process end too.
"""

import atexit
import builtins
import fcntl
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
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import NoReturn

from hora_rl.actors.verifier.sandbox import layers, seccomp

LAUNCH = """\
import importlib, sys, types
package = sys.modules["hora_rl"] = types.ModuleType("hora_rl")
package.__path__ = [sys.argv[1]]  # in a checkout the package's own folder is not the folder of its packages
preload, refused, packages = sys.argv[4].split(), sys.argv[5].split(), sys.argv[6]
importlib.import_module(sys.argv[2]).serve(int(sys.argv[3]), preload, refused, packages)
"""

STOP = b"stop"
MOST = 1 << 16
FIXED = 4
"""Descriptors of every request: stdin, stdout, stderr, source."""
SET_UP_FAILED = 97
THREAD_STACK = 8 << 20
"""Stack size of threads in bytes. The C library's default is the host's stack limit, and a few such stacks
may exceed a program's memory."""
PRELOADED = (
    *("bisect", "collections", "dataclasses", "datetime", "decimal", "fractions", "functools", "heapq"),
    *("itertools", "math", "operator", "random", "re", "string", "threading", "typing"),
)
"""Modules that programs import most, imported once."""


def serve(descriptor: int, preload: list[str], refused: list[str], packages: str) -> NoReturn:
    """Answer requests until the caller closes its end."""
    # The caller may have many open descriptors. Here all are below 100, and a program closes those.
    sock = socket.socket(fileno=os.dup(descriptor))
    os.close(descriptor)
    held = layers.held(set(refused), packages)
    # Before the namespaces: inside, every zygote is process 1.
    user = None if held["uid"] else layers.own_user()
    if not held["namespaces"]:
        _enter_namespaces(sock)
    if packages:
        sys.path.append(packages)
    for name in (*PRELOADED, *preload):
        importlib.import_module(name)
    sys.path.pop(0)
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # which -S leaves out
    threading.stack_size(THREAD_STACK)
    gc.freeze()  # otherwise garbage collection in programs would copy memory shared with this process
    box = _Box(sock, held, user, packages)
    sock.send(json.dumps({"layers": held, "python": sys.executable}).encode())
    while True:
        data, descriptors, _, _ = socket.recv_fds(sock, MOST, 16)
        if not data:
            os._exit(0)
        if data != STOP:  # a STOP that came too late has no effect
            source = box.run(json.loads(data), descriptors)
            if source is not None:
                _run_as_script(source)


@contextmanager
def _end_on_failure(report: int) -> Iterator[None]:
    """Used during the set-up of a forked process, which must not continue as a second zygote after an error.
    Writes the error to `report` and exits."""
    try:
        yield
    except BaseException as error:  # noqa: BLE001  whatever failed, this process must end
        try:
            os.write(report, f"{type(error).__name__}: {error}"[:500].encode())
        finally:
            os._exit(SET_UP_FAILED)


class _Box:
    def __init__(self, sock: socket.socket, held: dict[str, str], user: int | None, packages: str) -> None:
        self._sock = sock
        self._held = {name for name, why in held.items() if not why}
        self._rules = layers.ruleset(packages) if "landlock" in self._held else None
        self._user = user

    def run(self, limits: dict[str, float], descriptors: list[int]) -> bytes | None:
        """Fork a program. The zygote sends its outcome and gets None; the program gets its source."""
        ready, report = os.pipe()
        zygote, began = os.getpid(), time.monotonic()
        pid = os.fork()
        if pid == 0:
            with _end_on_failure(report):
                return self._become_program(limits, descriptors, report, zygote)
        for descriptor in (*descriptors, report):
            os.close(descriptor)
        ended_by = self._wait(pid, limits["wall"])
        _, status, usage = os.wait4(pid, 0)
        with os.fdopen(ready, "rb") as pipe:
            trouble = pipe.read().decode(errors="replace") or "ended before it began"
        answer = {
            "status": os.waitstatus_to_exitcode(status),
            "over": ended_by == "clock",
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "wall_s": time.monotonic() - began,
            "trouble": "" if trouble == "1" or ended_by == "caller" else trouble,
        }
        try:
            self._sock.send(json.dumps(answer).encode())
        except OSError:  # the caller is dead
            os._exit(0)
        return None

    def _wait(self, pid: int, wall: float) -> str:
        """Wait until the program ends, and return the cause: itself, clock, or caller (stopped or dead)."""
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
        self, limits: dict[str, float], descriptors: list[int], report: int, zygote: int
    ) -> bytes:
        self._sock.close()
        with os.fdopen(descriptors.pop(FIXED - 1), "rb") as file:
            source = file.read()
        report, rules = _placed(descriptors, report, self._rules)
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
            layers.restrict(rules)
            os.close(rules)
        _fresh_streams()
        seccomp.install(layers.machine(), os.getpid(), threads is not None)
        os.write(report, b"1")
        os.close(report)
        return source

    def _threads(self, wanted: int) -> int | None:
        """The value for RLIMIT_NPROC. The kernel counts per user, and does not count for root."""
        if self._user is not None:
            return wanted
        if os.geteuid() == 0:
            return None
        return wanted + 2 if "namespaces" in self._held else layers.threads_of_the_machine()


def _enter_namespaces(sock: socket.socket) -> None:
    """Continue as process 1 of new namespaces, while the outer process waits. When either ends, the kernel
    kills all processes inside."""
    layers.enter_namespaces()
    pid = os.fork()
    if pid:
        sock.close()  # so that the caller notices the end of the inner process
        os.waitpid(pid, 0)
        os._exit(0)
    layers.die_with(0)


def _placed(descriptors: list[int], report: int, rules: int | None) -> tuple[int, int | None]:
    """Renumber the program's descriptors to 0, 1, 2, … and close all others except `report` and `rules`."""
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 100) for descriptor in descriptors]
    high_report = fcntl.fcntl(report, fcntl.F_DUPFD, 100)
    high_rules = None if rules is None else fcntl.fcntl(rules, fcntl.F_DUPFD, 100)
    os.closerange(0, 100)
    for number, descriptor in enumerate(high):
        os.dup2(descriptor, number)
        os.close(descriptor)
    return high_report, high_rules


def _fresh_streams() -> None:
    """Replace Python's standard streams with streams on the new descriptors."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        stream = open(number, mode, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _run_as_script(source: bytes) -> NoReturn:
    """Run the program and exit like a script: join threads, call exit functions, flush buffers. Skips the
    interpreter's shutdown, because that takes longer than most programs."""
    status: object = 0
    main = sys.modules["__main__"] = ModuleType("__main__")
    sys.argv = ["main.py"]
    try:
        exec(compile(source, "main.py", "exec"), main.__dict__)
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
