"""What vLLM's processes load: a plugin (entry point `vllm.general_plugins`), and the methods that
`worker_extension_cls` adds to workers for `collective_rpc`. vLLM refuses names that its worker already has.

The plugin registers the weight transports and the loader of model files, and ends engine processes with their
parent: a killed replica would leave them behind, with memory and GPUs. Linux only, like vLLM's servers.

vLLM loads LoRA adapters only from a folder that every worker can read. Here received tensors go directly into
its adapter manager while generation is paused, and one that does not fit leaves the old adapter in place."""

import multiprocessing
import signal
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

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
from hora_rl.common.model.adapters import WEIGHTS
from hora_rl.common.model.model_files import not_finite, refuse_not_finite, text_name
from hora_rl.common.processes import die_with_parent
from hora_rl.common.weights.tensor_hash import TensorHash
from hora_rl.common.weights.vllm_transfer import (
    FileWeightTransferEngine,
    GlooWeightTransferEngine,
    NcclEngine,
)

POLICY = 1
"""vLLM's id of the adapter that every request uses."""
NOWHERE = "/nonexistent/hora-policy-adapter"
"""Path of the adapter in requests. vLLM reads the path only after it lost the adapter. A missing path then
ends the engine, so the replica is replaced. An existing one would be served as the newest version."""
Part = Literal["model", "adapter"]
ENGINES = {"file": FileWeightTransferEngine, "gloo": GlooWeightTransferEngine, "hora-nccl": NcclEngine}
"""Engines by name. The names must differ from those of vLLM's engines."""
QWEN3_5 = "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"


class WorkerExtension:
    weight_transfer_engine: Any
    model_runner: Any
    _weight_update_active: bool
    _tensor_hash: TensorHash | None = None

    def weights_arrived(self) -> bool:
        """Whether all weights of the current update have arrived. An error ends the update, as in vLLM."""
        with ExitStack() as otherwise:
            otherwise.callback(self._end_update)
            arrived = bool(self.weight_transfer_engine.arrived())
            otherwise.pop_all()
        return arrived

    def install_adapter(self, settings: Mapping[str, object]) -> None:
        """Install the received adapter. vLLM's `finish_weight_update` would remove all adapters instead."""
        try:
            received = {name: tensor.cpu() for name, tensor in self.weight_transfer_engine.weights()}
            put_adapter(self.model_runner.lora_manager, received, settings)
        finally:
            self._end_update()

    def load_adapter(self, folder: str, settings: Mapping[str, object]) -> None:
        from safetensors.torch import load_file

        put_adapter(self.model_runner.lora_manager, load_file(Path(folder) / WEIGHTS), settings)

    def clear_adapter(self) -> None:
        """Install an adapter of zeros: the base itself. A running sequence cannot get an adapter later."""
        inner = self.model_runner.lora_manager._adapter_manager
        _replace(inner, inner.create_dummy_lora(POLICY, 1, self.model_runner.lora_manager.embedding_modules))

    def hash_weights(self, part: Part) -> str:
        from vllm.model_executor.model_loader.weight_checksum import _weights

        if self._tensor_hash is None:
            self._tensor_hash = TensorHash()
        if part == "adapter":
            return self._tensor_hash.digest(adapter_tensors(self.model_runner.lora_manager))
        return self._tensor_hash.digest(_weights(self.model_runner.get_model()))

    def _end_update(self) -> None:
        self._weight_update_active = False
        self.weight_transfer_engine.reset_weight_update_target()


def put_adapter(lora: Any, tensors: Mapping[str, torch.Tensor], settings: Mapping[str, object]) -> None:
    """Make `tensors`, named as in an adapter's file, the adapter of the worker's `lora_manager`. `settings`:
    its `adapter_config.json`. Raises ValueError, before any change, for settings that vLLM does not support
    and layers that this model lacks."""
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper

    inner = lora._adapter_manager
    helper = PEFTHelper.from_dict(dict(settings))
    helper.validate_legal(lora.lora_config)
    mapper = getattr(inner.model, "hf_to_vllm_mapper", None)
    model = LoRAModel.from_lora_tensors(
        POLICY,
        dict(tensors),
        helper,
        device="cpu",
        dtype=lora.lora_config.lora_dtype,
        model_vocab_size=lora.vocab_size,
        weights_mapper=None if mapper is None else mapper.get_rename_mapper(),
    )
    _check_layers(inner, model.loras)
    _replace(inner, model)


def adapter_tensors(lora: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The adapter's tensors as the model uses them now, layer by layer."""
    for name, module in sorted(lora._adapter_manager.modules.items()):
        for part in ("lora_a_stacked", "lora_b_stacked"):
            for i, tensor in enumerate(getattr(module, part, ())):
                yield f"{name}.{part}.{i}", tensor


def _replace(inner: Any, model: Any) -> None:
    inner.remove_adapter(POLICY)
    inner.add_adapter(model)
    inner.activate_adapter(POLICY)


def _check_layers(inner: Any, loras: Mapping[str, Any]) -> None:
    """Raise ValueError for unknown layers, which vLLM would ignore."""
    packed = {name for names in inner.packed_modules.values() for name in names}
    known = packed | set(inner.modules)
    unknown = sorted(set(loras) - known)
    if unknown or not loras:
        raise ValueError(
            f"vLLM has no place for {len(unknown)} of {len(loras)} layers of the adapter, the first is "
            f"{unknown[0] if unknown else 'missing'}: choose other learner.lora.targets"
        )
    torn = sorted(name for name, of in loras.items() if of.lora_a is None or of.lora_b is None)
    if torn:
        raise ValueError(f"the adapter lacks A or B of layer {torn[0]}")


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
