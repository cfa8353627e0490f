"""Plugin that vLLM loads in each of its processes (entry point `vllm.general_plugins`). Registers the weight
transports and the loader of model files, and ends engine processes with their parent.

Otherwise a killed replica would leave its engine core and workers behind, with their memory and GPUs. Linux
only, like vLLM's servers.
"""

import multiprocessing
import signal
from collections.abc import Generator
from dataclasses import replace
from importlib.util import find_spec

import torch
from torch import nn
from vllm.config import ModelConfig
from vllm.config.load import LoadConfig
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER, register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.models import ModelRegistry

from hora_rl.actors.generator.engine_args import FORMAT, PART
from hora_rl.actors.generator.failures import note_failures
from hora_rl.common.model.model_files import not_finite, refuse_not_finite
from hora_rl.common.model.text_part import text_name
from hora_rl.common.processes import die_with_parent
from hora_rl.common.weights.vllm_transfer import (
    FileWeightTransferEngine,
    GlooWeightTransferEngine,
    NcclEngine,
)

ENGINES = {"file": FileWeightTransferEngine, "gloo": GlooWeightTransferEngine, "hora-nccl": NcclEngine}
"""Engines by name. The names must differ from those of vLLM's engines."""
QWEN3_5 = "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"


class FiniteLoader(DefaultModelLoader):
    """Refuses NaN and infinite weights, and of a model that holds more than text reads the text part. Only a
    loader still knows a tensor's name in the file: vLLM later merges tensors, and packs them on a CPU."""

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(replace(load_config, load_format="hf"))

    def get_all_weights(
        self, model_config: ModelConfig, model: nn.Module
    ) -> Generator[tuple[str, torch.Tensor], None, None]:
        """Raises ConfigError at the first tensor with NaN or an infinite value."""
        part = getattr(model_config.hf_config, PART, False)
        for in_file, tensor in super().get_all_weights(model_config, model):
            name = text_name(in_file) if part else in_file
            if name is None:
                continue
            refuse_not_finite(not_finite([(name, tensor)]), model_config.model)
            yield name, tensor


def register() -> None:
    """Called by vLLM in all its processes, in some more than once."""
    for name, engine in ENGINES.items():
        if name not in WeightTransferEngineFactory._registry:
            WeightTransferEngineFactory.register_engine(name, engine)
    if FORMAT not in _LOAD_FORMAT_TO_MODEL_LOADER:
        register_model_loader(FORMAT)(FiniteLoader)
    if find_spec("torchvision") is None:
        for name in QWEN3_5:
            ModelRegistry.register_model(name, f"{__package__}.qwen3_5:{name}")
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        note_failures()
        die_with_parent(signal.SIGKILL, parent.pid)
