"""Ray's own processes on this machine, watched while a run uses them.

Nothing of Ray can start a raylet again, and without it every call waits or fails under lines of Ray's own. So
the command says which process died, records it, and ends: what Ray left ends with it, and the embedded Redis
as its parent does. Where every process was asked to stop (systemd's control group, Slurm), that was a stop.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import AbstractContextManager
from functools import partial

import psutil

from hora_rl.deploy.machine.beside import beside
from hora_rl.deploy.machine.record import RunFile, State
from hora_rl.deploy.machine.signals import asked_to_stop

WATCH_S = 0.1
HEARD_S = 2.0
"""For the main thread to hear a signal that a process of Ray heard first."""
NEEDED = ("raylet", "gcs_server")
LOGS_OF_RAY = {
    "RAY_ROTATION_MAX_BYTES": str(16 * 2**20),
    "RAY_ROTATION_BACKUP_COUNT": "1",
    "RAY_event_stats_print_interval_ms": "600000",
}
"""Ray's defaults write statistics of each process every minute, and keep 3 GiB of each log file."""


def on_loopback() -> dict[str, str]:
    """Have Ray's node, started next, listen on loopback. The environment that has Gloo and NCCL do so too."""
    from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = False  # read from the environment when Ray is imported, maybe before
    return dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), _loopback())


def _loopback() -> str:
    """The name of this machine's loopback interface."""
    interfaces = psutil.net_if_addrs().items()
    return next(name for name, own in interfaces if any(a.address == "127.0.0.1" for a in own))


def watched_node(file: RunFile | None) -> AbstractContextManager[None]:
    """While the block runs, end this command when Ray's node here loses a process that it needs; `file` is
    told the reason, then the user."""
    return beside("ray-node", partial(_watch, file))


def _watch(file: RunFile | None, done: threading.Event) -> None:
    while not done.wait(WATCH_S):
        if died := _dead():
            _end(file, died)


def _end(file: RunFile | None, died: str) -> None:
    """Say and record why at once: Ray ends this process as soon as any thread asks its raylet something."""
    reason = (
        f"Ray's node on this machine ended (its process {died} died): look for what killed it, as short "
        "memory does"
    )
    _say(file, "failed", reason, f"hora: {reason}")
    if stopped := asked_to_stop.wait(HEARD_S):
        _say(file, "stopped", "interrupted", "\nstopped")
    os._exit(130 if stopped else 1)


def _say(file: RunFile | None, state: State, reason: str, line: str) -> None:
    resume = "" if file is None else f"; resume with: {file.read().resume}"
    print(f"{line}{resume}", file=sys.stderr, flush=True)
    if file is not None:
        file.end(state, reason)


def _dead() -> str | None:
    """A process of the node of this command that is needed and has ended."""
    import ray

    node = ray._private.worker._global_node
    dead = [kind for kind, _ in node.dead_processes()] if node is not None else []
    return next((kind for kind in dead if kind in NEEDED), None)
