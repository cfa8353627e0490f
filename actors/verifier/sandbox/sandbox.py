"""Runs untrusted programs, one at a time, with every layer of protection that this machine supports.

    box = Sandbox()
    box.run("print(int(input()) + 1)", b"3\n")   # Outcome(kind="ok", out=b"4\n", …)

Programs are Python with the standard library. They can read stdin and the interpreter's files, and write to
stdout and stderr. They have no writable folder, no network and no second process. `layers.py` describes the
protection. Use a sandbox from one thread at a time, and one sandbox per concurrent program.
"""

import fcntl
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from hora_rl.actors.verifier.sandbox.zygote import LAUNCH, STOP, serve
from hora_rl.common.errors import RunError

ROOT = Path(__file__).resolve().parents[3]
"""The parent folder of `actors`, from which the zygote imports HORA's modules."""
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LC_ALL": "C.UTF-8",
    "MALLOC_ARENA_MAX": "2",
    "OPENBLAS_NUM_THREADS": "1",
}
"""All environment variables of a program. Each malloc arena takes 64 MiB of address space. The zygote forks,
so libraries must not start threads."""
SYSTEM = ("/usr/bin/python3", "/usr/local/bin/python3")
START_S = 60.0
"""Seconds until a silent zygote counts as failed to start."""
GRACE_S = 30.0
"""Seconds beyond a program's wall-clock limit after which a silent zygote counts as lost."""
SEALS = 0x2 | 0x4 | 0x8  # F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE

Kind = Literal["ok", "error", "time", "wall", "output"]

WALL = 3.0
"""Wall-clock seconds per second of processor time. Large enough for a busy machine, but small because a
sleeping program occupies a sandbox."""
WALL_START_S = 2.0
"""Additional wall-clock seconds for the start on a busy machine."""


@dataclass(frozen=True)
class Limits:
    """`seconds` of processor time; `memory`, the address space in bytes, including 30 MiB for the
    interpreter; `output`, the bytes of stdout and of stderr; `files`, open descriptors."""

    seconds: float = 4.0
    memory: int = 512 << 20
    output: int = 1 << 20
    files: int = 64
    threads: int = 32

    @property
    def wall(self) -> float:
        """Wall-clock limit in seconds."""
        return WALL * self.seconds + WALL_START_S


@dataclass(frozen=True)
class Outcome:
    """How one program ended. `ok`: exit status 0. `error`: another status, or a signal (negative, as in
    `subprocess`). `time`: exceeded its processor time. `wall`: exceeded its wall-clock time, perhaps because
    the machine was busy. `output`: filled stdout or stderr."""

    kind: Kind
    status: int
    out: bytes
    err: bytes
    cpu_s: float
    wall_s: float


DEFAULT = Limits()


class SandboxError(RunError):
    """Programs cannot run safely on this machine. The text gives the reason."""


class SandboxLost(RuntimeError):
    """The sandbox failed and the program was not judged. Start another sandbox."""


class Sandbox:
    """One zygote. `preload` names HORA modules that programs may import, `packages` a folder of packages of
    this Python that they may import. `without` disables layers (for tests). `layers` has for each layer the
    reason why it does not work, or "". Raises SandboxError if the working ones are not sufficient."""

    def __init__(
        self, preload: Sequence[str] = (), without: Collection[str] = (), packages: str = ""
    ) -> None:
        self.layers: Mapping[str, str] = {}
        *others, last = [os.path.realpath(sys.executable)] if packages else interpreters()
        for python in others:
            with suppress(SandboxError):  # for example too old: try the next one
                self._open(python, preload, without, packages)
                return
        self._open(last, preload, without, packages)

    def _open(self, python: str, preload: Sequence[str], without: Collection[str], packages: str) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            named = (" ".join(preload), " ".join(without), packages)
            words = [str(ROOT), serve.__module__, str(theirs.fileno()), *named]
            self._process = subprocess.Popen(
                [python, "-I", "-S", "-B", "-c", LAUNCH, *words],
                pass_fds=[theirs.fileno()],
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        with ExitStack() as otherwise:
            otherwise.callback(self.close)
            self.layers = self._hello(python)["layers"]
            if why := unsafe(self.layers):
                raise SandboxError(why)
            otherwise.pop_all()

    def run(self, source: str, stdin: bytes = b"", limits: Limits = DEFAULT, tries: int = 1) -> Outcome:
        """Run a program, up to `tries` times while it exceeds its wall-clock time. Raises SandboxLost."""
        for _ in range(tries):
            self.start(source, stdin, limits)
            if (outcome := self.wait()).kind != "wall":
                break
        return outcome

    def start(
        self, source: str, stdin: bytes = b"", limits: Limits = DEFAULT, pipes: Sequence[int] = ()
    ) -> None:
        """Start a program; then `wait`. `pipes` become its descriptors from 3 up. Raises SandboxLost."""
        self._limits = limits
        files = [_sealed(stdin), _memory(), _memory(), _sealed(source.encode("utf-8", "surrogatepass"))]
        self._out, self._err = files[1:3]
        request = json.dumps(asdict(limits) | {"wall": limits.wall}).encode()
        try:
            socket.send_fds(self._socket, [request], [*files, *pipes])
        except OSError as error:
            self._forget()
            raise SandboxLost(f"the sandbox's process is gone: {error}") from error
        finally:
            os.close(files[0])
            os.close(files[3])

    def wait(self) -> Outcome:
        """Wait for the program and return its outcome. Raises SandboxLost."""
        try:
            answer = self._receive(self._limits.wall + GRACE_S)
            if answer["trouble"]:
                raise SandboxLost(f"the sandbox could not be set up for a program: {answer['trouble']}")
            out, err = (os.pread(file, self._limits.output, 0) for file in (self._out, self._err))
        finally:
            self._forget()
        kind = self._kind(answer, max(len(out), len(err)))
        return Outcome(kind, answer["status"], out, err, answer["cpu_s"], answer["wall_s"])

    def stop(self) -> None:
        """Stop the running program; `wait` still returns its outcome."""
        try:
            self._socket.send(STOP)
        except OSError as error:
            raise SandboxLost(f"the sandbox's process is gone: {error}") from error

    def close(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()

    def _kind(self, answer: dict[str, float], written: int) -> Kind:
        if answer["cpu_s"] > self._limits.seconds:
            return "time"
        if answer["over"]:
            return "wall"
        if written >= self._limits.output:
            return "output"
        return "ok" if answer["status"] == 0 else "error"

    def _hello(self, python: str) -> dict:
        try:
            return self._receive(START_S)
        except SandboxLost as error:
            self._process.kill()
            lines = self._process.communicate()[1].decode(errors="replace").strip().splitlines()
            why = lines[-1] if lines else str(error)
            raise SandboxError(f"no sandbox can be made with {python}: {why}") from None

    def _receive(self, limit_s: float) -> dict:
        self._socket.settimeout(limit_s)
        try:
            data = self._socket.recv(1 << 16)
        except OSError as error:
            raise SandboxLost(f"the sandbox's process does not answer: {error}") from error
        finally:
            self._socket.settimeout(None)
        if not data:
            raise SandboxLost("the sandbox's process ended")
        return json.loads(data)

    def _forget(self) -> None:
        os.close(self._out)
        os.close(self._err)


def unsafe(layers: Mapping[str, str]) -> str:
    """The reason why these layers are not sufficient, or ""."""
    if layers["seccomp"]:
        return (
            f"programs cannot be run safely: seccomp does not hold ({layers['seccomp']}); allow it in the "
            "container's profile, or use another host"
        )
    if layers["landlock"] and layers["uid"]:
        return (
            "programs could read this user's files: neither Landlock holds "
            f"({layers['landlock']}) nor a user of their own ({layers['uid']}); use Linux 5.13 or later with "
            "Landlock, or start the verifier as root"
        )
    return ""


def interpreters() -> list[str]:
    """Interpreters for programs, best first: this Python without its virtual environment. As root, first
    those that all users can read, because programs run as another user."""
    ours = os.path.realpath(sys.executable)
    if os.geteuid() != 0:
        return [ours]
    reached = [path for path in (ours, *SYSTEM) if _for_everyone(Path(path))]
    return [*dict.fromkeys([*reached, ours])]


def _for_everyone(path: Path) -> bool:
    try:
        real = path.resolve(strict=True)
        return all(p.stat().st_mode & stat.S_IXOTH for p in (real, *real.parents))
    except OSError:
        return False


def _memory() -> int:
    return os.memfd_create("sandbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def _sealed(content: bytes) -> int:
    """A read-only file in memory."""
    file = _memory()
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]
    os.lseek(file, 0, os.SEEK_SET)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
    return file
