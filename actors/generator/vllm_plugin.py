"""Plugin that vLLM loads in each of its processes (entry point `vllm.general_plugins`). Registers the weight
transports, and ends engine processes with their parent.

Otherwise a killed replica would leave its engine core and workers behind, with their memory and GPUs. Linux
only, like vLLM's servers.
"""

from __future__ import annotations

import multiprocessing
import signal

from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER, register_model_loader

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
"""Engines by name. The names must differ from those of vLLM's engines."""


def register() -> None:
    """Called by vLLM in all its processes, in some more than once."""
    for name, engine in ENGINES.items():
        if name not in WeightTransferEngineFactory._registry:
            WeightTransferEngineFactory.register_engine(name, engine)
    if FORMAT not in _LOAD_FORMAT_TO_MODEL_LOADER:
        register_model_loader(FORMAT)(FiniteLoader)
    parent = multiprocessing.parent_process()
    if parent is not None:
        note_failures()
        die_with_parent(signal.SIGKILL, parent.pid)
