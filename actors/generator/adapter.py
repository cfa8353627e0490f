"""The policy's LoRA adapter inside a vLLM worker: replaced in place while generation is paused.

vLLM loads adapters only from a folder that every worker can read. Here received tensors go directly into its
adapter manager. So generators need no folder, nothing is serialized again, and an adapter that does not fit
leaves the old one in place.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

POLICY = 1
"""vLLM's id of the adapter that every request uses."""
NOWHERE = "/nonexistent/hora-policy-adapter"
"""Path of the adapter in requests. vLLM reads the path only after it lost the adapter. A missing path then
ends the engine, so the replica is replaced. An existing one would be served as the newest version."""


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


def put_zero_adapter(lora: Any) -> None:
    """Install an adapter of zeros, so that the policy equals its base. A running sequence cannot get an
    adapter later."""
    inner = lora._adapter_manager
    _replace(inner, inner.create_dummy_lora(POLICY, 1, lora.embedding_modules))


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
