"""Machines on this machine: each has a network, processes, a host name, `/dev/shm` and `/tmp/ray` of its own.
They share all other files.

The namespaces have no names, and their first process dies with the test: nothing is left of them, however it
ends. `ray stop` in one ends the Ray of that one alone.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from hora_rl.common.processes import die_with_parent

BIN = Path(sys.executable).parent
SEPARATE = ("--net", "--pid", "--uts", "--ipc", "--mount")
# The first process of a machine adopts those whose parent has ended.
INIT = """
import os, time
while True:
    try:
        os.wait()
    except ChildProcessError:
        time.sleep(0.1)
"""
# As Debian does it, the host's own name is a loopback address.
SET_UP = """
hostname {name}
mount --bind {folder}/ray /tmp/ray
mount -t tmpfs tmpfs /dev/shm
mount --bind {folder}/hosts /etc/hosts
ip link set lo up
echo up
exec {python} -c "$1"
"""


def why_not() -> str | None:
    """Why no machines can be made here; None where they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "unshare", "nsenter", "mount") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)}: not installed"
    tried = subprocess.run(["unshare", *SEPARATE, "--fork", "true"], capture_output=True, text=True)
    return f"no namespaces: {tried.stderr.strip()}" if tried.returncode else None


@dataclass(slots=True)
class Machine:
    """Up while its process runs. Its folder holds home, logs and what is mounted."""

    name: str
    folder: Path
    environment: dict[str, str]
    init: psutil.Process = field(init=False)

    def start(self) -> subprocess.Popen[str]:
        for part in ("ray", "home"):
            (self.folder / part).mkdir(parents=True)
        Path("/tmp/ray").mkdir(exist_ok=True)
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {self.name}\n")
        script = "set -e" + SET_UP.format(name=self.name, folder=self.folder, python=sys.executable)
        with (self.folder / "init.log").open("wb") as log:
            new = "unshare", *SEPARATE, "--fork", "--kill-child", "--mount-proc"
            how: dict[str, Any] = {"text": True, "stdout": subprocess.PIPE}
            how["preexec_fn"] = partial(die_with_parent, signal.SIGKILL, os.getpid())
            holder = subprocess.Popen([*new, "sh", "-c", script, "sh", INIT], stderr=log, **how)
        assert holder.stdout.readline() == "up\n", f"{self.name} did not start"
        [self.init] = psutil.Process(holder.pid).children()
        return holder

    def command(self, script: str) -> list[str]:
        inside = [f"--{part.strip('-')}" for part in SEPARATE]
        shell = ["bash", "-euo", "pipefail", "-c", script]
        return ["nsenter", f"--target={self.init.pid}", *inside, f"--wd={self.folder / 'home'}", *shell]

    def run(self, script: str, limit_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """`script` of bash to its end, in the home folder."""
        command, env = self.command(script), self._env()
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=limit_s)

    def begin(self, command: str, log: str) -> psutil.Process:
        """`command` in the background, its output in the file `log` of the folder."""
        with (self.folder / log).open("ab") as out:
            streams = {"stdout": out, "stderr": out, "stdin": subprocess.DEVNULL}
            entered = psutil.Popen(self.command(f"exec {command}"), env=self._env(), **streams)
        while not (inside := entered.children()):
            assert entered.poll() is None, self.said(log)
        return inside[0]

    def said(self, log: str) -> str:
        return (self.folder / log).read_text(errors="replace")

    def processes(self) -> list[psutil.Process]:
        """All but the first."""
        mine = os.stat(f"/proc/{self.init.pid}/ns/pid").st_ino
        return [p for p in psutil.process_iter() if p != self.init and _namespace(p.pid) == mine]

    def _env(self) -> dict[str, str]:
        path = f"{BIN}:{os.environ['PATH']}"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "HORA_"))}
        return {**kept, "PATH": path, "HOME": str(self.folder / "home"), "COLUMNS": "200", **self.environment}


@contextmanager
def private_network(folder: Path, names: Sequence[str], **environment: str) -> Iterator[list[Machine]]:
    """Two machines at the ends of one cable: 10.0.0.1 and 10.0.0.2, and no way anywhere else."""
    machines = [Machine(name, folder / name, environment) for name in names]
    with ExitStack() as ending:
        for machine in machines:
            ending.callback(_end, machine.start(), machine)
        first, second = (f"netns {machine.init.pid}" for machine in machines)
        cable = f"ip link add eth0 {first} type veth peer name eth0 {second}".split()
        subprocess.run(cable, check=True)
        for number, machine in enumerate(machines, 1):
            up = machine.run(f"ip address add 10.0.0.{number}/24 dev eth0; ip link set eth0 up")
            assert up.returncode == 0, up.stderr
        yield machines


def _end(holder: subprocess.Popen[str], machine: Machine) -> None:
    """The kernel ends every process of a machine with its first."""
    family = machine.processes()
    machine.init.send_signal(signal.SIGKILL)
    holder.wait(20)
    psutil.wait_procs(family, timeout=20)


def _namespace(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:  # it has ended
        return None
