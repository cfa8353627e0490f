"""What a program may do, how each ends, and what a sandbox refuses."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import psutil
import pytest

from hora_rl.actors.verifier.sandbox.sandbox import Sandbox, SandboxError, SandboxLost
from hora_rl.common.load import ROOT

ORDINARY = """
import sys, json, re, math, collections, itertools, heapq, bisect, random, decimal, fractions, datetime
import functools, typing, dataclasses, asyncio, threading, string, operator, copy, time, hashlib, enum, array
import statistics, io

@dataclasses.dataclass
class Point:
    x: int

async def later():
    return await asyncio.to_thread(lambda: 5)

def deep(n):
    return 0 if n == 0 else 1 + deep(n - 1)

def main():
    print(asyncio.run(later()), Point(3), deep(50_000), input(), sys.argv, __name__)

sys.setrecursionlimit(100_000)
threading.stack_size(64 << 20)
threading.Thread(target=main).start()
"""


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with closing(Sandbox()) as sandbox:
        yield sandbox


def test_an_ordinary_program_runs_with_the_standard_library_and_threads(box: Sandbox) -> None:
    outcome = box.run(ORDINARY, "größer\n".encode())
    assert outcome.err == b""
    assert outcome.out.decode() == "5 Point(x=3) 50000 größer ['main.py'] __main__\n"
    assert outcome.kind == "ok"
    assert 0 < outcome.cpu_s < outcome.wall_s + 1


SCRATCH = """
import errno, io, sqlite3, tempfile
from importlib.util import find_spec
for attempt in (lambda: open("x", "w"), lambda: open("/tmp/x", "wb"), tempfile.TemporaryFile):
    try:
        attempt()
    except OSError as error:
        print(errno.errorcode[error.errno])
print(io.StringIO("held in memory").read(), sqlite3.connect(":memory:").execute("select 1").fetchone())
print(find_spec("numpy"))
"""


def test_there_is_no_folder_to_write_to_and_no_library_but_pythons_own(box: Sandbox) -> None:
    found = box.run(SCRATCH)
    lines = found.out.decode().splitlines()
    assert lines[:3] == ["EROFS", "EROFS", "ENOENT"], found
    assert lines[3:] == ["held in memory (1,)", "None"]


@pytest.mark.parametrize(
    ("source", "kind", "status"),
    [
        ("import sys; sys.exit(3)", "error", 3),
        ("import sys; sys.exit('said')", "error", 1),
        ("raise SystemExit", "ok", 0),
        ("1 / 0", "error", 1),
        ("def f(:", "error", 1),
        ("import os; os.kill(os.getpid(), 9)", "error", -9),
        ("import os; os._exit(97)", "error", 97),
        ("bytearray(1 << 40)", "error", 1),
        ("import sys; sys.stdout.close()", "ok", 0),
        ("\0", "error", 1),
        ("'\ud800'", "error", 1),
        ("", "ok", 0),
    ],
)
def test_how_a_program_ended_is_told(box: Sandbox, source: str, kind: str, status: int) -> None:
    outcome = box.run(source)
    assert (outcome.kind, outcome.status) == (kind, status), outcome


def test_exit_functions_and_buffers_are_served_and_nothing_stays_for_the_next(box: Sandbox) -> None:
    found = box.run("import atexit; atexit.register(print, 'end'); x = 1; print('begin')")
    assert found.out == b"begin\nend\n"
    assert b"NameError" in box.run("print(x)").err
    assert box.run("import builtins; builtins.print = None").kind == "ok"
    assert box.run("print(2)").out == b"2\n"


def test_pipes_become_the_descriptors_after_stderr(box: Sandbox) -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb") as end:
        box.start("import os; os.write(3, b'said')", pipes=[write])
        os.close(write)
        assert box.wait().kind == "ok"
        assert end.read() == b"said"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give programs users")
def test_every_sandbox_has_a_user_of_its_own(box: Sandbox) -> None:
    """The kernel counts threads by user: one program's must not use up another's."""
    with closing(Sandbox()) as other:
        users = {b.run("import os; print(os.getresuid())").out for b in (box, other)}
    assert len(users) == 2
    assert b"(0, 0, 0)\n" not in users


@pytest.mark.skipif(os.geteuid() != 0, reason="the kernel bounds the threads of every other user")
def test_threads_are_refused_where_nothing_bounds_them() -> None:
    with closing(Sandbox(without=["uid"])) as sandbox:
        outcome = sandbox.run("import threading; threading.Thread(target=print).start()")
        assert b"can't start new thread" in outcome.err
        assert sandbox.run("print(1)").kind == "ok"


def test_a_program_can_be_stopped(box: Sandbox) -> None:
    box.start("import time; time.sleep(60)")
    box.stop()
    outcome = box.wait()
    assert (outcome.kind, outcome.status) == ("error", -signal.SIGKILL)
    assert outcome.wall_s < 5
    box.start("print(1)")
    time.sleep(0.3)
    box.stop()  # too late: it has ended
    assert box.wait().out == b"1\n"
    assert box.run("print(2)").out == b"2\n"


def test_it_refuses_to_start_without_seccomp_and_without_a_hold_on_files() -> None:
    before = set(psutil.Process().children())
    with pytest.raises(SandboxError, match="seccomp"):
        Sandbox(without=["seccomp"])
    with pytest.raises(SandboxError, match="Landlock"):
        Sandbox(without=["landlock", "uid"])
    assert set(psutil.Process().children()) <= before, "what was refused has ended"


def test_an_interpreter_that_does_not_start_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ["/bin/true", "/bin/false"]
    monkeypatch.setattr("hora_rl.actors.verifier.sandbox.sandbox.interpreters", lambda: found)
    with pytest.raises(SandboxError, match="/bin/false") as error:
        Sandbox()
    assert "\n" not in str(error.value)
    found.append(sys.executable)
    with closing(Sandbox()) as sandbox:
        assert sandbox.run("print(1)").out == b"1\n", "the next one does"


def test_a_zygote_that_dies_is_no_wrong_answer() -> None:
    with closing(Sandbox()) as sandbox:
        sandbox.start("import time; time.sleep(60)")
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # the end of one ends others
                if "zygote" in " ".join(process.cmdline()):
                    process.kill()
        with pytest.raises(SandboxLost):
            sandbox.wait()
        with pytest.raises(SandboxLost):
            sandbox.run("print(1)")


def test_no_process_is_left_when_the_caller_is_killed() -> None:
    code = (
        "from hora_rl.actors.verifier.sandbox.sandbox import Sandbox\n"
        "for without in ((), ('namespaces',)):\n"
        "    globals()[str(without)] = box = Sandbox(without=without)\n"
        "    box.start('import time; time.sleep(60)')\n"
        "print('ready', flush=True); input()"
    )
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    caller = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
    assert caller.stdout.readline() == "ready\n"
    family = psutil.Process(caller.pid).children(recursive=True)
    assert len(family) >= 4
    caller.kill()
    caller.communicate(timeout=20)
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
