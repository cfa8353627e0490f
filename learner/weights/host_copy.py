"""The newest weights in rank 0's host memory, from where they are written or sent while the next step
trains."""

from collections.abc import Iterator

import torch
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from hora_rl.common.weights.adapter_names import PARAMETER
from hora_rl.learner.engine import Engine
from hora_rl.learner.host_block import HostBlock, size_of


class Snapshot:
    """One version in host memory; iterating puts each tensor on `device`."""

    def __init__(self, version: int, tensors: list[tuple[str, torch.Tensor]], device: torch.device) -> None:
        self.version, self.device = version, device
        self._tensors = tensors

    def shapes(self) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
        """Name, type and shape of each tensor, in the order of iteration."""
        return [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self._tensors]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, tensor.to(self.device)) for name, tensor in self._tensors)


class HostCopy:
    """A full model in host memory, in a block that every version reuses. Only rank 0 has a copy. `converts`:
    names or shapes differ between the model's files and its parameters."""

    def __init__(self, engine: Engine, rank: int) -> None:
        self._engine, self._rank = engine, rank
        self._block: HostBlock | None = None
        self.converts = differ(engine.hf)

    def snapshot(self) -> list[tuple[str, torch.Tensor]]:
        """The current weights, by their names in a model's files; empty on the other ranks.

        They are valid until the next call. Under ZeRO-3 a collective of all ranks.
        """
        taken = []
        block = self._emptied() if self._rank == 0 else None
        for name, parameter in self._engine.whole():
            if block is not None:
                taken.append((name, block.like(parameter).copy_(parameter)))
        return [*in_files(self._engine.hf, dict(taken)).items()] if taken and self.converts else taken

    def _emptied(self) -> HostBlock:
        if self._block is None:
            parameters = dict(self._engine.hf.named_parameters())
            adapter = [p for name, p in parameters.items() if PARAMETER.match(name)]
            pinned = self._engine.device.type == "cuda"
            self._block = HostBlock(size_of(adapter or parameters.values()), pinned=pinned)
        self._block.restart()
        return self._block


def in_files(hf: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """All parameters of a model, from their names in memory to those that `save_pretrained` would write.
    Results are views or copies.

    In memory transformers may merge a layer's experts into one tensor, or use another prefix for a multimodal
    language model. A module that transformers did not make has the same names.
    """
    if not isinstance(hf, PreTrainedModel):
        return tensors
    converted: dict[str, torch.Tensor] = revert_weight_conversion(hf, tensors)  # type: ignore[no-untyped-call]
    return converted


def differ(hf: torch.nn.Module) -> bool:
    """Whether the model's files have other names or shapes than its parameters. False for an adapter, which
    is published by separate names."""
    shapes = {name: tuple(getattr(p, "ds_shape", p.shape)) for name, p in hf.named_parameters()}
    if any(PARAMETER.match(name) for name in shapes):
        return False
    found = in_files(hf, {name: torch.empty(shape, device="meta") for name, shape in shapes.items()})
    return {name: tuple(tensor.shape) for name, tensor in found.items()} != shapes
