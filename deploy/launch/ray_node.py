"""Watch Ray's processes on this machine during a run.

Ray cannot restart a raylet, and without one every call hangs or fails with Ray's messages. So the command
reports and records the dead process and exits. Ray's remaining processes and the embedded Redis end with it.
If all processes were asked to stop (systemd's control group, Slurm), the run counts as stopped.
"""

import os
import sys
import threading
from contextlib import AbstractContextManager
from functools import partial

from hora_rl.common.processes import background_thread
from hora_rl.deploy.machine.ray_start import dead_processes
from hora_rl.deploy.machine.record import RunFile, State
from hora_rl.deploy.machine.signals import asked_to_stop

WATCH_S = 0.02
HEARD_S = 2.0
"""Seconds for the main thread to receive a signal that a Ray process received first."""
NEEDED = ("raylet", "gcs_server")
LOGS_OF_RAY = {
    "RAY_ROTATION_MAX_BYTES": str(16 * 2**20),
    "RAY_ROTATION_BACKUP_COUNT": "1",
    "RAY_event_stats_print_interval_ms": "600000",
}
"""Smaller logs: by default Ray writes statistics every minute and keeps 3 GiB per log file."""


def watched_node(file: RunFile | None) -> AbstractContextManager[None]:
    """Exit this process if Ray's node loses a required process while the block runs. Records the reason in
    `file` and prints it."""
    return background_thread("ray-node", partial(_watch, file))


def _watch(file: RunFile | None, done: threading.Event) -> None:
    """Wait for the end of a required process of this command's Ray node. After a request to stop, any process
    counts: all were signalled, those without a handler exit first, and this process dies with the raylet's
    object store."""
    while not done.wait(WATCH_S):
        died = [kind for kind in dead_processes() if kind in NEEDED or asked_to_stop.is_set()]
        if died:
            _end(file, died[0])


def _end(file: RunFile | None, died: str) -> None:
    """Print and record the reason at once, because Ray ends this process at the next call to its raylet."""
    reason = (
        f"Ray's node on this machine ended (its process {died} died): look for what killed it, as short "
        "memory does"
    )
    if not asked_to_stop.is_set():
        _say(file, "failed", reason, f"hora: {reason}")
    if stopped := asked_to_stop.wait(HEARD_S):
        _say(file, "stopped", "interrupted", "\nstopped")
    os._exit(130 if stopped else 1)


def _say(file: RunFile | None, state: State, reason: str, line: str) -> None:
    resume = "" if file is None else f"; resume with: {file.read().resume}"
    print(f"{line}{resume}", file=sys.stderr, flush=True)
    if file is not None:
        file.end(state, reason)
