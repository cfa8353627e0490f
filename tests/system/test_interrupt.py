"""SIGTERM, a closing terminal, Ctrl-C and `hora stop` stop everything that was started; `--resume` continues
without a gap."""

import ipaddress
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from hora_rl.deploy.machine.signals import GRACE_S

HORA = str(Path(sys.executable).with_name("hora"))
STEPS = 6
SETTINGS = {
    "rollout.prompts_per_batch": 8,
    "rollout.group_size": 6,
    "rollout.pre_rollouts": 2,
    "rollout.shards": 2,
    "learner.steps": STEPS,
    "learner.checkpoint_every": 1,
    "evaluation.path": "null",
    "telemetry.http_port": 0,
}

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


def command(folder: Path, *more: str) -> list[str]:
    settings = {**SETTINGS, "run.folder": folder, "run.name": "stopped"}
    return [HORA, "run", "tiny", *more, *(p for k, v in settings.items() for p in ("-s", f"{k}={v}"))]


def steps(run: Path) -> list[int]:
    file = run / "steps.jsonl"
    return [json.loads(line)["step"] for line in file.read_text().splitlines()] if file.exists() else []


class Terminal:
    """A terminal with one command in it, the leader of its session, which gets the hang-up when it closes."""

    def __init__(self, command: list[str]) -> None:
        self.screen, theirs = os.openpty()
        os.set_blocking(self.screen, False)
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(theirs)
        self.said = ""
        self.other: subprocess.Popen[bytes] | None = None

    def read(self) -> str:
        try:
            while found := os.read(self.screen, 65536):
                self.said += found.decode(errors="replace")
        except (BlockingIOError, OSError):
            pass
        return self.said[-3000:]

    def until(self, done: Callable[[], bool]) -> list[psutil.Process]:
        """Wait until `done`; the command and all that it has started."""
        deadline = time.monotonic() + 600
        while not done():
            assert self.process.poll() is None, self.read()
            assert time.monotonic() < deadline, self.read()
            self.read()
            time.sleep(0.1)
        return psutil.Process(self.process.pid).children(recursive=True)

    def ended(self) -> int | None:
        """Exit status, None after the grace period. A terminal that nobody reads would block the command."""
        deadline = time.monotonic() + GRACE_S
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read()
            time.sleep(0.1)
        return self.process.poll()

    def stop(self, how: str, run: Path) -> None:
        if how == "hora stop":
            self.other = subprocess.Popen([HORA, "stop", str(run)], stdout=subprocess.PIPE)
        elif how == "close":
            os.close(self.screen)
        elif how == "^C":
            os.write(self.screen, b"\x03")  # to every process of the terminal's foreground group
        elif how == "timeout":
            self.process.send_signal(signal.SIGTERM)  # it signals the command, and then its own group
        elif how == "everyone":  # as systemd and Slurm do
            for process in (*psutil.Process(self.process.pid).children(recursive=True), self.process):
                process.send_signal(signal.SIGTERM)
        else:
            os.killpg(self.process.pid, signal.Signals[how])


def loading(_run: Path, terminal: Terminal) -> bool:
    for process in psutil.Process(terminal.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "VLLM::" in " ".join(process.cmdline()):
                return True
    return False


def open_ports(processes: list[psutil.Process]) -> set[str]:
    """Names of the processes that listen elsewhere than on loopback; every socket is printed."""
    found = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            name = (process.cmdline() or [process.name()])[0]
            for socket in process.net_connections("tcp"):
                if socket.status == psutil.CONN_LISTEN:
                    print(f"{name}: {socket.laddr.ip} {socket.laddr.port}")
                    if not ipaddress.ip_address(socket.laddr.ip.removeprefix("::ffff:")).is_loopback:
                        found.add(name.split(":hora")[0])
    return found


MOMENTS: dict[str, Callable[[Path, Terminal], bool]] = {
    "starting": lambda run, _: (run / "run.json").exists(),
    "loading": loading,
    "training": lambda run, _: len(steps(run)) >= 2,
}


def stopped(folder: Path, how: str, when: str = "training") -> None:
    """Start the run, stop it by `how` at the moment `when`, and see that all of it has ended in good
    order."""
    run = folder / "stopped"
    terminal = Terminal([*(["timeout", "900"] if how == "timeout" else []), *command(folder)])
    family = terminal.until(lambda: MOMENTS[when](run, terminal))
    if when == "training":
        assert open_ports(family) <= {"ray::ServeReplica"}, "Serve's gRPC port of a replica has no setting"
    began = time.monotonic()
    terminal.stop(how, run)
    assert terminal.ended() == 130, (how, terminal.read())
    print(f"{how}: ended after {time.monotonic() - began:.1f} s")
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE], how
    assert json.loads((run / "run.json").read_text())["state"] == "stopped", how
    if how != "close":
        assert "resume with: hora run" in terminal.read(), how
        assert "SIGTERM received" not in terminal.read(), "a stack of C++"
        os.close(terminal.screen)
    if terminal.other is not None:
        said, _ = terminal.other.communicate(timeout=60)
        assert terminal.other.returncode == 0
        assert b"--resume" in said


@pytest.mark.slow
@pytest.mark.parametrize("how", ["close", "^C", "hora stop"])
def test_a_terminal_stops_its_run(tmp_path: Path, how: str) -> None:
    stopped(tmp_path, how)


@pytest.mark.slow
@pytest.mark.parametrize("when", list(MOMENTS))
@pytest.mark.parametrize("how", ["timeout", "SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_to_the_whole_group_stops_a_run_in_order(tmp_path: Path, how: str, when: str) -> None:
    stopped(tmp_path, how, when)


@pytest.mark.slow
def test_a_signal_to_every_process_is_a_stop(tmp_path: Path) -> None:
    stopped(tmp_path, "everyone")


@pytest.mark.slow
def test_a_terminal_stops_hora_while_it_measures_the_initial_policy(tmp_path: Path) -> None:
    """The learner's processes are starting then."""
    run = tmp_path / "stopped"
    longer = {"evaluation.path": "arithmetic", "evaluation.prompts": 100, "evaluation.samples": 1000}
    terminal = Terminal([*command(tmp_path), *(p for k, v in longer.items() for p in ("-s", f"{k}={v}"))])
    samples = run / "evaluation" / "arithmetic-step0.samples.jsonl"
    terminal.until(lambda: samples.exists() and samples.stat().st_size > 0)
    time.sleep(5.0)
    family = psutil.Process(terminal.process.pid).children(recursive=True)
    terminal.stop("^C", run)
    assert terminal.ended() == 130, terminal.read()
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    assert json.loads((run / "run.json").read_text())["state"] == "stopped"
    assert "Traceback" not in terminal.read()
    assert steps(run) == []
    os.close(terminal.screen)


@pytest.mark.core
def test_a_stopped_run_leaves_nothing_and_is_resumed_without_a_gap(tmp_path: Path) -> None:
    run = tmp_path / "stopped"
    stopped(tmp_path, "SIGTERM")
    env = {**os.environ, "COLUMNS": "200"}
    again = subprocess.run(
        command(tmp_path, "--resume"), capture_output=True, text=True, timeout=400, env=env
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert steps(run) == list(range(STEPS))
    groups = [json.loads(line) for line in (run / "groups.jsonl").read_text().splitlines()]
    assert len({g["group_id"] for g in groups}) == len(groups) == 8 * STEPS
    assert all(sum(g["size"] for g in groups if g["batch"] == b) == 48 for b in range(STEPS))
