"""The newest weights in rank 0's host memory. They are written or sent from there while the next step
trains."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from hora_rl.common.weights.adapter_names import PARAMETER
from hora_rl.learner.engine import Engine
from hora_rl.learner.host_block import HostBlock, size_of
from hora_rl.learner.weights.file_names import differ, in_files


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
    """A whole model in host memory, in a block that every version reuses. Only rank 0 has it. `converts`: the
    model's files have other names or shapes than its parameters."""

    def __init__(self, engine: Engine, rank: int) -> None:
        self._engine, self._rank = engine, rank
        self._block: HostBlock | None = None
        self.converts = differ(engine.hf)

    def snapshot(self) -> list[tuple[str, torch.Tensor]]:
        """The weights as they are now, by their names in a model's files; empty on the other ranks.

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
