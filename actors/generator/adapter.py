"""The policy's LoRA adapter inside a vLLM worker: replaced in place while generation is paused.

vLLM replaces an adapter only from a folder that every worker can read. Here the tensors are put into its
adapter manager directly, as they arrived by the transport of full weights: no folder is needed where the
generators run, nothing is serialised once more, and an adapter that does not fit leaves the old one in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

POLICY = 1
"""vLLM's number of the adapter that every request uses."""
NOWHERE = "/nonexistent/hora-policy-adapter"
"""vLLM looks at a request's path only when it lost the adapter. The path must not exist: vLLM would load what
lies there under the newest version's name, and so it ends the engine, and the replica is replaced."""


def put_adapter(lora: Any, tensors: Mapping[str, torch.Tensor], settings: Mapping[str, object]) -> int:
    """Make `tensors`, by the names of an adapter's file, the policy's adapter; returns the number of layers.

    `lora` is the worker's `lora_manager`, `settings` an `adapter_config.json`. Raises ValueError, before
    anything changes, for settings that vLLM does not serve and for layers that this model does not have.
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
    layers = len(model.loras)
    inner.remove_adapter(POLICY)
    inner.add_adapter(model)
    inner.activate_adapter(POLICY)
    return layers


def put_zero_adapter(lora: Any) -> None:
    """Make the policy its base: an adapter of zeros, for a sequence carries one from its first token or
    never."""
    inner = lora._adapter_manager
    inner.remove_adapter(POLICY)
    inner.add_adapter(inner.create_dummy_lora(POLICY, 1, lora.embedding_modules))
    inner.activate_adapter(POLICY)


def adapter_tensors(lora: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """What the model multiplies by now, layer by layer."""
    for name, module in sorted(lora._adapter_manager.modules.items()):
        for part in ("lora_a_stacked", "lora_b_stacked"):
            for i, tensor in enumerate(getattr(module, part, ())):
                yield f"{name}.{part}.{i}", tensor


def _check_layers(inner: Any, loras: Mapping[str, Any]) -> None:
    """vLLM drops a layer that it does not know without a word."""
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
        raise ValueError(f"the adapter of {torn[0]} came without its A or B")
