"""An orderly stop is not broken off by whoever asks for it a second time, and reaches nobody else first. A
folder for temporary files is refused if, and only if, a socket of Ray or vLLM would not fit below it."""

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from ray._private import services

from hora_rl.common.errors import RunError
from hora_rl.deploy.checks import machine
from hora_rl.deploy.checks.findings import Target
from hora_rl.deploy.machine import ray_start, signals
from hora_rl.deploy.machine.ray_start import LONGEST, OF_ENGINE, OF_RAY, check_sockets, starting_ray
from hora_rl.deploy.machine.record import RunFile
from hora_rl.deploy.machine.signals import heard_afterwards, stopped_by_signals, undisturbed
from tests.support.checks import Make


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("delayed", [True, False])
def test_a_signal_during_a_start_is_heard_afterwards_and_during_a_stop_never(
    number: signal.Signals, delayed: bool
) -> None:
    reached = []

    def interrupted() -> None:
        try:
            if not delayed:
                os.kill(os.getpid(), signal.SIGINT)
        finally:
            with heard_afterwards() if delayed else undisturbed():
                os.kill(os.getpid(), number)
                reached.append(True)

    with pytest.raises(KeyboardInterrupt), stopped_by_signals():
        interrupted()
    assert reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_stop_is_known_before_the_main_thread_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = []
    monkeypatch.setattr(signals, "_interrupt", lambda *_: heard.append(signals.asked_to_stop.is_set()))
    with stopped_by_signals():
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000)  # about a second without handlers
    assert heard == [True]


def test_in_another_thread_nothing_changes() -> None:
    seen = []

    def stop() -> None:
        with undisturbed():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=stop)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def test_what_is_ignored_stays_ignored_for_what_is_started() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with heard_afterwards():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_request_that_comes_twice_interrupts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from `timeout -s INT`, which signals the command and then its group."""
    monkeypatch.setattr(signals, "TWICE_S", 0.3)
    interrupts = 0
    with stopped_by_signals():
        for pause in (0.0, 0.0, 0.4):
            time.sleep(pause)
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.01)
            except KeyboardInterrupt:
                interrupts += 1
    assert interrupts == 2


def test_what_ray_starts_is_in_sessions_of_its_own_and_ends_with_the_command() -> None:
    """A child of ours stands for the command, so that it can be killed."""
    read, write = os.pipe()
    if (command := os.fork()) == 0:
        with starting_ray():
            started = services.start_ray_process(["sleep", "60"], "test", fate_share=True).process
        os.write(write, f"{started.pid} {os.getsid(started.pid)}".encode())
        signal.pause()
    pid, session = map(int, os.read(read, 100).split())
    sleeping = psutil.Process(pid)
    os.kill(command, signal.SIGKILL)
    os.waitpid(command, 0)
    assert session == pid
    psutil.wait_procs([sleeping], timeout=10)
    assert not sleeping.is_running() or sleeping.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(("asked", "state", "status"), [(True, "stopped", 130), (False, "failed", 1)])
def test_a_raylet_that_a_stop_ended_too_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: bool, state: str, status: int
) -> None:
    heard, ended, file = threading.Event(), list[int](), RunFile(tmp_path)
    if asked:
        threading.Timer(0.1, heard.set).start()
    monkeypatch.setattr(ray_start, "asked_to_stop", heard)
    monkeypatch.setattr(ray_start, "HEARD_S", 1.0)
    monkeypatch.setattr(os, "_exit", lambda code: ended.append(code))
    file.start("r", os.getpid())
    ray_start._end(file, "raylet")
    assert ended == [status]
    assert file.read().state == state
    assert ("raylet" in file.read().reason) is not asked


def test_a_request_that_a_library_swallows_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "AGAIN_S", 1.1)

    def swallows() -> None:
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        time.sleep(5)

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), stopped_by_signals():
        swallows()
    assert time.monotonic() - began < 4


MOST = {OF_RAY: LONGEST - len(OF_RAY) - 1, OF_ENGINE: LONGEST - len(OF_ENGINE) - 1}


def folder(length: int) -> str:
    return "/tmp/" + "é" + "x" * (length - 7)


@pytest.mark.parametrize(
    ("own", "of_ray", "refused"),
    [
        (MOST[OF_RAY], None, None),
        (MOST[OF_RAY] + 1, None, "TMPDIR "),
        (MOST[OF_ENGINE], 4, None),
        (MOST[OF_ENGINE] + 1, 4, "TMPDIR "),
        (4, MOST[OF_RAY] + 1, "RAY_TMPDIR "),
    ],
)
def test_the_folder_is_named_with_what_it_may_have(
    own: int, of_ray: int | None, refused: str | None, monkeypatch: pytest.MonkeyPatch, config: Make
) -> None:
    for key, length in (("TMPDIR", own), ("RAY_TMPDIR", of_ray)):
        monkeypatch.delenv(key, raising=False)
        if length is not None:
            monkeypatch.setenv(key, folder(length) if length > 4 else "/tmp")
    monkeypatch.setattr(tempfile, "tempdir", os.environ["TMPDIR"])  # tempfile takes a folder that exists
    if refused is None:
        assert check_sockets() <= LONGEST
        return
    with pytest.raises(RunError) as refusal:
        list(machine.sockets(Target(config())))
    assert str(refusal.value).startswith(refused)
    assert not list(machine.sockets(Target(config(), "train"))), "Ray is up already"


@pytest.mark.system
def test_ray_and_vllm_add_no_more_than_that(tmp_path: Path) -> None:
    """Ray starts in the longest folder that is allowed; vLLM's name for a socket has the length assumed."""
    with tempfile.TemporaryDirectory(prefix="x" * (MOST[OF_RAY] - len("/tmp/") - 8), dir="/tmp") as longest:
        assert len(longest) == MOST[OF_RAY]
        ran = subprocess.run(
            [sys.executable, "-c", ASKED],
            env={**os.environ, "TMPDIR": longest, "VLLM_RPC_BASE_PATH": "/x"},
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        )
    of_ray, of_engine = map(int, ran.stdout.split()[-2:])
    assert of_ray <= LONGEST
    assert of_engine == len("/x/") + len(OF_ENGINE.partition("/")[2])


ASKED = """
import ray
from vllm.utils.network_utils import get_open_zmq_ipc_path
ray.init(address="local", num_cpus=1, include_dashboard=False)
print(len(ray._private.worker._global_node.plasma_store_socket_name), len(get_open_zmq_ipc_path()) - len("ipc://"))
"""
