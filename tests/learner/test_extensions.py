"""Who compiles for DeepSpeed, and that nobody waits for a process that is gone. The compiler itself runs in
the chaos suite."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from hora_rl.learner import extensions

HOLD = """
import sys, time
from pathlib import Path
from hora_rl.learner.extensions import owned
with owned(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""

BUILD = """
import sys
from pathlib import Path
from torch.utils.cpp_extension import is_ninja_available
from hora_rl.learner.extensions import builds_in
assert not is_ninja_available()
with builds_in(Path(sys.argv[1])):
    assert is_ninja_available()
assert not is_ninja_available()
"""


def holder(place: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(place)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_lock_of_a_killed_process_is_free_and_that_of_a_living_one_is_waited_for_by_its_name(
    tmp_path: Path,
) -> None:
    waits: list[str] = []
    process = holder(tmp_path)
    assert extensions.busy(tmp_path) == waited_for(process)

    def end_it(what: str) -> None:
        waits.append(what)
        process.kill()

    began = time.monotonic()
    with extensions.owned(tmp_path, end_it):
        assert extensions.busy(tmp_path) is not None
    assert waits[0] == f"{waited_for(process)}, which compiles in {tmp_path}"
    assert time.monotonic() - began < 20
    assert extensions.busy(tmp_path) is None
    process.wait()


def waited_for(process: subprocess.Popen[str]) -> str:
    return f"process {process.pid} of {extensions.socket.gethostname()}"


def test_a_start_that_waits_for_long_says_so_in_its_log_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(extensions, "POLL_S", 0.02)
    monkeypatch.setattr(extensions, "SAY_S", 0.03)
    process, told = holder(tmp_path), list[str]()

    def wait(what: str) -> None:
        told.append(what)
        if len(told) == 6:
            process.kill()

    with extensions.owned(tmp_path, wait):
        said = capsys.readouterr().out
    process.wait()
    assert said.count("the start waits") >= 2
    assert f"process {process.pid}" in said


def test_a_lock_file_that_a_process_has_open_is_not_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    left, used = tmp_path / "py311_cpu" / "deepspeed_shm_comm" / "lock", tmp_path / "other" / "lock"
    own = extensions.build_folder() / "deepspeed_shm_comm" / "lock"
    for lock in (left, used, own):
        lock.parent.mkdir(parents=True)
        lock.touch()
    with used.open():
        assert extensions.abandoned_locks() == [left]


def test_builds_of_this_environment_lie_in_a_folder_of_their_own_below_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    place = extensions.build_folder()
    assert place.parent == tmp_path / "hora"
    monkeypatch.setattr(extensions.importlib.metadata, "version", lambda name: "9.9")
    assert extensions.build_folder() != place


def test_a_build_finds_ninja_where_the_environment_is_not_on_the_path(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUILD, str(tmp_path)]
    subprocess.run(command, env={"PATH": str(tmp_path)}, check=True, timeout=120)
