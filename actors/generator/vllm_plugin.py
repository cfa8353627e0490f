"""What vLLM loads in each of its processes (entry point `vllm.general_plugins`): the weight
transports, and a tie of every engine process to its parent.

A replica that is killed leaves its engine core and workers behind, holding memory and GPUs; the kernel ends
them with their parent instead. Linux only, like vLLM's servers.
"""

from __future__ import annotations

import multiprocessing
import signal

from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER, register_model_loader

from hora_rl.actors.generator.cpu_kernels import register_kernels
from hora_rl.actors.generator.engine_args import FORMAT
from hora_rl.actors.generator.failure_notes import note_failures
from hora_rl.actors.generator.finite_loader import FiniteLoader
from hora_rl.actors.generator.weight_engine import (
    FileWeightTransferEngine,
    GlooWeightTransferEngine,
    NcclEngine,
)
from hora_rl.common.processes import die_with_parent

ENGINES = {"file": FileWeightTransferEngine, "gloo": GlooWeightTransferEngine, "hora-nccl": NcclEngine}
"""By names that vLLM has no engine of its own for."""


def register() -> None:
    """Called by vLLM in every one of its processes; more than once in some."""
    for name, engine in ENGINES.items():
        if name not in WeightTransferEngineFactory._registry:
            WeightTransferEngineFactory.register_engine(name, engine)
    if FORMAT not in _LOAD_FORMAT_TO_MODEL_LOADER:
        register_model_loader(FORMAT)(FiniteLoader)
    register_kernels()
    parent = multiprocessing.parent_process()
    if parent is not None:
        note_failures()
        die_with_parent(signal.SIGKILL, parent.pid)
