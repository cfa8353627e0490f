"""NVIDIA's MPS for a run whose processes share a card: their kernels run at the same time. Without it the
driver gives the processes turns, however little of the card each uses.

The daemon starts before Ray, whose processes inherit where its pipes are, and ends after it. It belongs to
this user and this run, and dies with the process that started it. A small program tries the card through it
first: where that fails, as in a container without the right to it, the run goes on without.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from hora_rl.common.config import GeneratorConfig
from hora_rl.common.errors import RunError
from hora_rl.common.processes import die_with_parent, environment

CONTROL = "nvidia-cuda-mps-control"
START_S, TRY_S, STOP_S = 10.0, 60.0, 5
LOOK_S = 0.05
TRY = """
import ctypes, sys
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
sys.exit(cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
"""
"""Makes a context on the first card; its exit status is CUDA's error."""


def wanted_by(generator: GeneratorConfig) -> bool:
    """Whether engines share their card with others that use it at the same time."""
    return 0 < (generator.gpus or 1.0) < 1 and generator.sleep == "none"


def installed() -> bool:
    return shutil.which(CONTROL) is not None


@contextmanager
def sharing(*, wanted: bool) -> Iterator[str]:
    """Run the daemon while the block runs, if `wanted` and not running already for this user. Yields why not;
    empty if the block runs with it, or needs none."""
    with ExitStack() as ending:
        if not wanted or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
            yield ""
            return
        try:
            ending.enter_context(_daemon())
            why = ""
        except RunError as error:
            why = str(error)
        yield why


@contextmanager
def _daemon() -> Iterator[None]:
    """The daemon with a folder of its own. Raises RunError if it does not start, or gives no card."""
    if not installed():
        raise RunError(f"{CONTROL} is not installed")
    with ExitStack() as ending:
        folder = Path(
            ending.enter_context(TemporaryDirectory(prefix="hora-mps-", ignore_cleanup_errors=True))
        )
        kinds = ("PIPE", "LOG")
        where = {f"CUDA_MPS_{kind}_DIRECTORY": str(folder) for kind in kinds}
        ending.enter_context(environment(where))
        process = subprocess.Popen(
            [CONTROL, "-f"],
            # For all cards: with a choice of its own it would number those that Ray shows a process anew.
            env={k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the run, which ends the daemon last
            preexec_fn=partial(die_with_parent, signal.SIGTERM, os.getpid()),
        )
        ending.callback(_end, process)
        _wait_for(process, folder / "control")
        try:
            command = [sys.executable, "-c", TRY]
            status = subprocess.run(command, timeout=TRY_S, stderr=subprocess.DEVNULL).returncode
        except subprocess.TimeoutExpired:
            raise RunError(f"a process got no card through it within {TRY_S:.0f} s") from None
        if status:
            raise RunError(f"a process got no card through it (CUDA error {status})")
        yield


def _wait_for(process: subprocess.Popen[bytes], socket: Path) -> None:
    deadline = time.monotonic() + START_S
    while not socket.exists():
        if process.poll() is not None:
            raise RunError(f"{CONTROL} ended with status {process.returncode}")
        if time.monotonic() > deadline:
            raise RunError(f"{CONTROL} was not ready within {START_S:.0f} s")
        time.sleep(LOOK_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the daemon and its server: by its own command, which does not wait for clients, else by signals."""
    with suppress(OSError, subprocess.SubprocessError):
        request = f"quit -t {STOP_S}\n".encode()
        subprocess.run([CONTROL], input=request, stdout=subprocess.DEVNULL, timeout=2 * STOP_S, check=False)
    for kill in (process.terminate, process.kill):
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
            return
        kill()
    process.wait()
