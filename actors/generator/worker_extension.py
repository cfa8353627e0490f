"""Methods added to vLLM's workers (`worker_extension_cls`), for `collective_rpc`. vLLM refuses names that its
worker already has.

vLLM loads LoRA adapters only from a folder that every worker can read. Here received tensors go directly
into its adapter manager, while generation is paused. So generators need no folder, nothing is serialized
again, and an adapter that does not fit leaves the old one in place.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import torch

from hora_rl.common.model.adapters import WEIGHTS
from hora_rl.common.weights.tensor_hash import TensorHash

POLICY = 1
"""vLLM's id of the adapter that every request uses."""
NOWHERE = "/nonexistent/hora-policy-adapter"
"""Path of the adapter in requests. vLLM reads the path only after it lost the adapter. A missing path then
ends the engine, so the replica is replaced. An existing one would be served as the newest version."""
Part = Literal["model", "adapter"]


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
        """Install the adapter in a folder."""
        from safetensors.torch import load_file

        put_adapter(self.model_runner.lora_manager, load_file(Path(folder) / WEIGHTS), settings)

    def clear_adapter(self) -> None:
        """Install an adapter of zeros, so that the policy equals its base. A running sequence cannot get an
        adapter later."""
        inner = self.model_runner.lora_manager._adapter_manager
        _replace(inner, inner.create_dummy_lora(POLICY, 1, self.model_runner.lora_manager.embedding_modules))

    def hash_weights(self, part: Part) -> str:
        """Digest of this worker's model weights or adapter."""
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
    """Make `tensors` the policy's adapter.

    `tensors` has the names of an adapter's file, `settings` is an `adapter_config.json`, and `lora` is the
    worker's `lora_manager`. Raises ValueError, before any change, for settings that vLLM does not support and
    for layers that this model lacks.
    """
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
