"""SIGTERM, a closing terminal, Ctrl-C and `hora stop` stop everything that was started, at any moment: also
while generators and learner load. `test_whole_loop.py` resumes a stopped run."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.system.conftest import HORA, PORTS_WITHOUT_A_SETTING, LiveRun

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


class Terminal(LiveRun):
    """A run on a terminal of its own, the leader of its session, which gets the hang-up when it closes."""

    def start(self, *more: str, before: Sequence[str] = ()) -> None:
        self.screen, theirs = os.openpty()
        os.set_blocking(self.screen, False)
        self._begin(
            *more, before=before, stdin=theirs, stdout=theirs, stderr=theirs,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(theirs)

    def said(self) -> str:
        with suppress(OSError), self._log.open("ab") as log:  # nothing more now, or closed
            while found := os.read(self.screen, 65536):
                log.write(found)
        return super().said()

    def processes(self) -> list[psutil.Process]:
        self.said()  # a terminal that nobody reads would block the command
        return super().processes()

    def close(self) -> None:
        os.close(self.screen)
        self.screen = -1

    def stop(self, how: str) -> None:
        assert self._process is not None
        if how == "close":
            self.close()
        elif how == "^C":
            os.write(self.screen, b"\x03")  # to every process of the terminal's foreground group
        elif how == "timeout":
            self._process.send_signal(signal.SIGTERM)  # it signals the command, and then its own group
        elif how == "everyone":  # as systemd and Slurm do
            for process in reversed(self.processes()):
                process.send_signal(signal.SIGTERM)
        else:
            self.signal_group(signal.Signals[how])


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """`terminal(**settings)`: a run that is not started yet; ended with the test."""
    made: list[Terminal] = []

    def make(**settings: object) -> Terminal:
        made.append(Terminal(tmp_path, 6, **{"learner.checkpoint_every": 1, **settings}))
        return made[-1]

    yield make
    for run in made:
        run.end()
        if run.screen >= 0:
            run.close()


MOMENTS: dict[str, Callable[[LiveRun], bool]] = {
    "starting": lambda run: (run.run / "run.json").exists(),
    "loading": lambda run: bool(run.part("engine")),
    "training": lambda run: run.trained() >= 2,
}


def check_stop(run: Terminal, how: str, when: str = "training") -> None:
    """Start the run, stop it by `how` at the moment `when`, and see that all of it has ended in good
    order."""
    run.start(before=["timeout", "900"] if how == "timeout" else [])
    run.wait_for(lambda: MOMENTS[when](run), when)
    if when == "training":
        assert run.open_ports() <= PORTS_WITHOUT_A_SETTING
    if how == "hora stop":
        other = subprocess.Popen([HORA, "stop", str(run.run)], stdout=subprocess.PIPE)
    else:
        run.stop(how)
    said = run.stopped()
    if how != "close":
        assert "resume with: hora run" in said
        assert "SIGTERM received" not in said, "a stack of C++"
    if how == "hora stop":
        answer, _ = other.communicate(timeout=60)
        assert other.returncode == 0
        assert b"--resume" in answer


@pytest.mark.slow
@pytest.mark.parametrize("how", ["close", "^C", "hora stop", "everyone"])
def test_a_terminal_or_a_signal_to_every_process_stops_a_run(
    terminal: Callable[..., Terminal], how: str
) -> None:
    check_stop(terminal(), how)


EVERYONE = """
import os, signal, sys, time
import ray
from hora_rl.deploy.machine.ray_start import watched_node
from hora_rl.deploy.machine.ray_start import starting_ray
from hora_rl.deploy.machine.signals import stopped_by_signals

with stopped_by_signals():
    with starting_ray():
        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    with watched_node(None):
        [other] = ray._private.worker._global_node.all_processes[sys.argv[1]]
        for pid in (other.process.pid, os.getpid()):
            os.kill(pid, signal.SIGTERM)
        try:
            time.sleep(20)
        except KeyboardInterrupt:
            while True:
                ray.put("what a stop asks of Ray")
"""


@pytest.mark.parametrize("signalled", ["raylet", "log_monitor"])
def test_ray_is_asked_nothing_once_its_processes_were_signalled_too(signalled: str) -> None:
    """It would end the command without a word, with status 1."""
    command = [sys.executable, "-c", EVERYONE, signalled]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 130, done.stderr
    assert "look for what killed it" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("when", list(MOMENTS))
@pytest.mark.parametrize("how", ["timeout", "SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_to_the_whole_group_stops_a_run_in_order(
    terminal: Callable[..., Terminal], how: str, when: str
) -> None:
    check_stop(terminal(), how, when)


def test_a_stop_while_generators_and_learner_load_ends_both(live_run: Callable[..., LiveRun]) -> None:
    run = live_run(2)
    run.wait_for(lambda: bool(run.part("controller") and run.part("generator")), "start of both")
    assert "up in" not in run.said(), "the replicas are still loading"
    for controller in run.part("controller"):
        controller.suspend()  # on a busy machine it answers nobody while ranks start
    run.interrupt()
    said = run.stopped()
    assert "Traceback" not in said
    assert "resume with: hora run" in said


@pytest.mark.slow
def test_a_generator_that_cannot_load_ends_the_run_with_its_reason(
    live_run: Callable[..., LiveRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM refuses the variable in the process of a replica, as it refuses a card that is too small."""
    monkeypatch.setenv("VLLM_FLOAT32_MATMUL_PRECISION", "neither")
    run = live_run(2)
    said = run.fail(240.0)
    run.assert_nothing_left(30.0)
    record = json.loads((run.run / "run.json").read_text())
    assert record["state"] == "failed"
    assert record["reason"].startswith("a replica of generator does not start: ")
    assert "Traceback" not in said
    assert record["reason"].split(": ")[1] in said


@pytest.mark.slow
def test_a_terminal_stops_hora_while_it_measures_its_first_policy(terminal: Callable[..., Terminal]) -> None:
    """The learner's processes are starting then."""
    longer = {"evaluation.path": "arithmetic", "evaluation.prompts": 100, "evaluation.samples": 1000}
    run = terminal(**longer)
    run.start()
    samples = run.run / "evaluation" / "arithmetic-step0.samples.jsonl"
    run.wait_for(lambda: samples.exists() and samples.stat().st_size > 0, "samples of step 0")
    time.sleep(5.0)
    run.processes()
    run.stop("^C")
    assert "Traceback" not in run.stopped()
    assert run.trained() <= 1, "the first new version waits for this evaluation"
