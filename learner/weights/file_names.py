"""Parameters by the names and shapes that a model's files have, which are those that vLLM loads.

In memory transformers may hold them otherwise: the experts of a layer as one tensor, the language model of a
multimodal one under another prefix.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from hora_rl.common.weights.adapter_names import PARAMETER


def in_files(hf: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """All of a model's parameters, by their names in memory, as `save_pretrained` would write them. Results
    are views or copies. A module that transformers did not make has the same names."""
    if not isinstance(hf, PreTrainedModel):
        return tensors
    converted: dict[str, torch.Tensor] = revert_weight_conversion(hf, tensors)  # type: ignore[no-untyped-call]
    return converted


def differ(hf: torch.nn.Module) -> bool:
    """Whether the model's files have other names or shapes than its parameters. False with an adapter, which
    goes out by names of its own."""
    shapes = {name: tuple(getattr(p, "ds_shape", p.shape)) for name, p in hf.named_parameters()}
    if any(PARAMETER.match(name) for name in shapes):
        return False
    found = in_files(hf, {name: torch.empty(shape, device="meta") for name, shape in shapes.items()})
    return {name: tuple(tensor.shape) for name, tensor in found.items()} != shapes
