"""Hostile programs harm nothing, behind all layers and behind the fewest that are accepted."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from hora_rl.actors.verifier.sandbox.sandbox import Limits, Sandbox
from tests.support.attacks import ATTACKS, PRELUDE, SLOW
from tests.support.programs import SETUP

OUTPUT = 1 << 16
LIMITS = Limits(seconds=2.0, output=OUTPUT)
SHORT = Limits(seconds=0.5)
LAYERS_LEFT_OUT = [
    pytest.param((), id="all layers"),
    pytest.param(("namespaces", "uid"), id="Landlock", marks=[pytest.mark.system, pytest.mark.core]),
    pytest.param(("namespaces", "landlock"), id="own user", marks=[pytest.mark.system, pytest.mark.core]),
]
SECRET = "the run's password"
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module", params=LAYERS_LEFT_OUT)
def box(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    if "landlock" in request.param and os.geteuid() != 0:
        pytest.skip("a user of its own needs root")
    with closing(Sandbox(without=request.param)) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process of this user with a secret in its environment."""
    environment = {**os.environ, "HORA_TOKEN": SECRET}
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment)
    yield process
    process.communicate(b"\n", timeout=20)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    for path in (tmp_path, *tmp_path.parents[:2]):  # reached by whoever may: the files are what is kept
        path.chmod(0o777)
    for name, mode in (("secret", 0o600), ("open", 0o666)):
        (tmp_path / name).write_text(SECRET)
        (tmp_path / name).chmod(mode)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        server.listen()
        yield tmp_path


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_program_harms_nothing(
    name: str, box: Sandbox, victim: subprocess.Popen[bytes], folder: Path, port: int
) -> None:
    source = PRELUDE + ATTACKS[name]
    for word, value in (("VICTIM", victim.pid), ("PORT", port), ("FOLDER", folder)):
        source = source.replace(word, str(value))
    before = state(folder)
    outcome = box.run(source, limits=LIMITS)
    assert b"HARM" not in outcome.out, outcome
    assert outcome.kind == "output" or name not in ("endless output", "endless errors")
    assert SECRET.encode() not in outcome.out + outcome.err
    assert len(outcome.out) <= OUTPUT
    assert len(outcome.err) <= OUTPUT
    assert state(folder) == before
    assert victim.poll() is None
    assert box.run("print(1)").out == b"1\n", "the next program runs"


def test_a_program_holds_nothing_of_a_caller_that_has_many_files_open() -> None:
    """The caller's socket has a high number then: a program could forge outcomes through it."""
    with ExitStack() as opened:
        for _ in range(150):
            opened.enter_context(open(os.devnull, "rb"))
        sandbox = opened.enter_context(closing(Sandbox()))
        outcome = sandbox.run(PRELUDE + ATTACKS["the run's secrets"])
        assert (outcome.kind, b"HARM" in outcome.out) == ("ok", False), outcome
        assert sandbox.run("print(1)").out == b"1\n"


@pytest.mark.system
@pytest.mark.core
@pytest.mark.parametrize("name", SLOW)
def test_a_program_that_takes_its_time_is_ended(name: str) -> None:
    with closing(Sandbox()) as sandbox:
        outcome = sandbox.run(PRELUDE + SLOW[name], limits=SHORT)
        assert outcome.kind in ("time", "wall")
        assert outcome.wall_s < SHORT.wall + 5
        assert sandbox.run("print(1)").out == b"1\n"


PLAIN = f"""{SETUP}
import os
sys.path.insert(0, sys.argv[1])
from hora_rl.actors.verifier.sandbox.sandbox import Sandbox
from tests.support.attacks import ATTACKS, PRELUDE
box = Sandbox(without=sys.argv[4:])
for name, source in ATTACKS.items():
    for word, value in (("VICTIM", str(os.getppid())), ("PORT", sys.argv[3]), ("FOLDER", sys.argv[2])):
        source = source.replace(word, value)
    outcome = box.run(PRELUDE + source)
    bounded = name == "thread bomb" and "namespaces" in sys.argv  # by the threads of the machine, not by 32
    if b"HARM" in outcome.out and not bounded:
        print(name, outcome.out[:200])
print(box.run("print(1)").out, *(not box.layers[n] for n in ("seccomp", "landlock", "uid")))
box.close()
"""


@pytest.mark.system
@pytest.mark.core
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("without", [(), ("namespaces",)], ids=["with user namespaces", "without"])
def test_programs_of_a_plain_user_harm_nothing(without: tuple[str, ...], folder: Path, port: int) -> None:
    """As in a container that gives neither root nor namespaces."""
    for path in folder.iterdir():
        os.chown(path, 65534, 65534)
    command = ["/usr/bin/python3", "-I", "-c", PLAIN, str(ROOT), str(folder), str(port), *without]
    before = state(folder)
    done = subprocess.run(command, user=65534, capture_output=True, text=True, timeout=120, cwd="/")
    assert done.stdout == "b'1\\n' True True False\n", done.stdout + done.stderr
    assert state(folder) == before


def state(folder: Path) -> dict[str, tuple[object, ...]]:
    """Every file with what an attack could change of it."""
    found = {p.name: (p.stat().st_mode, p.stat().st_size, p.stat().st_mtime) for p in folder.iterdir()}
    return {**found, "": (folder.stat().st_mtime,)}
