"""What vLLM loads in each of its processes (entry point `vllm.general_plugins`): the `file` and `gloo` transports, and a
tie of every engine process to its parent.

A replica that is killed leaves its engine core and workers behind, holding memory and GPUs; the kernel ends them
with their parent instead. Linux only, like vLLM's servers.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys

from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from actors.generator.weight_engine import FileWeightTransferEngine, GlooWeightTransferEngine

ENGINES = {"file": FileWeightTransferEngine, "gloo": GlooWeightTransferEngine}
PR_SET_PDEATHSIG = 1


def register() -> None:
    """Called by vLLM in every one of its processes; more than once in some."""
    for name, engine in ENGINES.items():
        if name not in WeightTransferEngineFactory._registry:
            WeightTransferEngineFactory.register_engine(name, engine)
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None and sys.platform == "linux":
        _die_with(parent.pid)


def _die_with(parent: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(1)  # The parent died before the tie was made.
