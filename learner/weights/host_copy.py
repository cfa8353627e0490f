"""The newest weights in rank 0's host memory, from where they are written or sent while the next step
trains."""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from hora_rl.common.model.adapters import PARAMETER, published_name
from hora_rl.common.weights.host_memory import HostBlock, MemoryFile, Snapshot, size_of
from hora_rl.common.weights.weight_file import Shape
from hora_rl.learner.model.engine import Engine


class HostCopy:
    """A full model in rank 0's host memory that versions reuse. `converts`: the model's files have other
    names or shapes. `room` gives the memory of a file for each version; otherwise all share one block."""

    def __init__(
        self, engine: Engine, rank: int, room: Callable[[Sequence[Shape]], MemoryFile] | None = None
    ) -> None:
        self._engine, self._rank = engine, rank
        self._block: HostBlock | None = None
        self.converts = differ(engine.hf)
        self._room = None if self.converts else room

    def snapshot(self, version: int, device: torch.device) -> Snapshot | None:
        """The current weights as `version`, by their names in a model's files; None on the other ranks. In
        the block they are valid until the next call. Under ZeRO-3 a collective of all ranks."""
        if self._rank:
            for _ in self._engine.published():
                pass
            return None
        named = dict(self._engine.hf.named_parameters())
        adapter = {published_name(name): p for name, p in named.items() if PARAMETER.match(name)}
        expected = adapter or named  # what `Engine.published` yields, without gathering it
        memory, block = None, self._block
        if self._room is not None:
            shapes = ((name, p.dtype, tuple(getattr(p, "ds_shape", p.shape))) for name, p in expected.items())
            memory = self._room(list(shapes))
        elif block is None:
            pinned = self._engine.device.type == "cuda"
            block = self._block = HostBlock(size_of(expected.values()), pinned=pinned)
        else:
            block.restart()
        taken = dict[str, torch.Tensor]()
        for name, parameter in self._engine.published():
            target = block.like(parameter) if block else cast(MemoryFile, memory).tensors[name]
            taken[name] = target.copy_(parameter)
        tensors = in_files(self._engine.hf, taken) if self.converts else taken
        return Snapshot(version, [*tensors.items()], device, memory)


def in_files(hf: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A model's parameters, from their names in memory to those of `save_pretrained`: transformers may merge
    a layer's experts, or use another prefix. Views or copies. A module that transformers did not make
    keeps its names."""
    if not isinstance(hf, PreTrainedModel):
        return tensors
    converted: dict[str, torch.Tensor] = revert_weight_conversion(hf, tensors)  # type: ignore[no-untyped-call]
    return converted


def differ(hf: torch.nn.Module) -> bool:
    """Whether the model's files have other names or shapes than its parameters; False for an adapter."""
    shapes = {name: tuple(getattr(p, "ds_shape", p.shape)) for name, p in hf.named_parameters()}
    if any(PARAMETER.match(name) for name in shapes):
        return False
    in_file = in_files(hf, {name: torch.empty(shape, device="meta") for name, shape in shapes.items()})
    return {name: tuple(tensor.shape) for name, tensor in in_file.items()} != shapes
