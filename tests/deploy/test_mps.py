"""The daemon that lets processes share a card lives as long as its run. It is a stand-in on PATH here;
what it does for a card, only a card shows."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from hora_rl.common.load import load
from hora_rl.deploy.checks.findings import Target
from hora_rl.deploy.checks.hardware import mps_daemon
from hora_rl.deploy.machine import mps
from tests.support.ports import until

DAEMON = """#!/bin/bash
at=$CUDA_MPS_PIPE_DIRECTORY
if [ "$1" = -f ]; then
    {first}
    [ -z "$CUDA_VISIBLE_DEVICES" ] && echo $$ > "$at/pid"
    touch "$at/control"
    while true; do sleep 0.05; done
fi
read -r said
[ "${{said%% *}}" = quit ] && {quit}
"""
QUIT = 'kill -9 "$(cat "$at/pid")"'
OWNER = """
import time
from hora_rl.deploy.machine import mps
mps.TRY = ""
with mps.sharing(wanted=True) as why:
    assert not why, why
    print(open(mps.os.environ["CUDA_MPS_PIPE_DIRECTORY"] + "/pid").read().strip(), flush=True)
    time.sleep(60)
"""


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`daemon(first="exit 3")`: a machine whose daemon does this before it serves."""

    def make(first: str = "true", quit_: str = QUIT) -> None:
        file = tmp_path / mps.CONTROL
        file.write_text(DAEMON.format(first=first, quit=quit_))
        file.chmod(0o755)

    make()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(mps, "TRY", "")
    monkeypatch.setattr(mps, "STOP_S", 1)
    return make


@pytest.mark.parametrize("quit_", [QUIT, "exit 0", "sleep 60"], ids=["asked", "by a signal", "after a hang"])
def test_it_ends_with_the_run(daemon: Callable[..., None], quit_: str) -> None:
    daemon(quit_=quit_)
    with mps.sharing(wanted=True) as why:
        assert why == ""
        folder = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
        assert folder.stat().st_mode & 0o77 == 0, "nobody else's processes"
        process = psutil.Process(int((folder / "pid").read_text()))
        assert process.is_running()
    assert not process.is_running()
    assert not folder.exists()
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ


@pytest.mark.usefixtures("daemon")
def test_it_ends_when_the_run_is_killed() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    process = psutil.Process(int(owner.stdout.readline()))
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.parametrize(("first", "reason"), [("exit 3", "status 3"), ("sleep 9", "not ready within 1 s")])
def test_a_daemon_that_does_not_start_leaves_the_run_without_it(
    daemon: Callable[..., None], monkeypatch: pytest.MonkeyPatch, first: str, reason: str
) -> None:
    monkeypatch.setattr(mps, "START_S", 1.0)
    daemon(first=first)
    with mps.sharing(wanted=True) as why:
        assert reason in why
        assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ


@pytest.mark.usefixtures("daemon")
def test_a_daemon_that_gives_no_card_is_ended_before_the_run_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    began = []
    popen = subprocess.Popen

    def noted(*args: object, **named: object) -> object:
        began.append(popen(*args, **named))  # type: ignore[call-overload]
        return began[-1]

    monkeypatch.setattr(mps, "TRY", "raise SystemExit(46)")
    monkeypatch.setattr(mps.subprocess, "Popen", noted)
    with mps.sharing(wanted=True) as why:
        assert "CUDA error 46" in why
        assert began[0].poll() is not None
        assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ


def test_it_is_for_engines_that_use_a_card_at_the_same_time_as_others() -> None:
    shared, turns, alone = (
        load("tiny", [*more, "rollout.max_staleness=0"]).generator
        for more in (["generator.gpus=0.25"], ["generator.gpus=0.5", "generator.sleep=step"], [])
    )
    assert [mps.wanted_by(generator) for generator in (shared, turns, alone)] == [True, False, False]
    with mps.sharing(wanted=False) as why:
        assert why == ""


def test_a_machine_without_it_says_so_before_and_in_a_run(
    daemon: Callable[..., None], cards: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def modes(*settings: str) -> list[str]:
        return [finding.says.partition(":")[0] for finding in mps_daemon(Target(load("tiny", settings)))]

    shared = "generator.gpus=0.25"
    assert not modes(shared), "no card"
    cards(1)
    assert modes(shared) == [
        f"{mps.CONTROL} starts with the run; processes on the card work at the same time"
    ]
    assert not modes()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert modes(shared) == ["off"]
    with mps.sharing(wanted=True) as why:
        assert "not installed" in why
