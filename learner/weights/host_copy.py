"""The newest weights in rank 0's host memory, from where they are written or sent while the next step
trains."""

from __future__ import annotations

import torch

from learner.engine import Engine


class HostCopy:
    """Buffers for a whole model, kept from version to version: memory that is new each time costs more than
    the copy.

    With CUDA they are pinned, so that the device copies by itself. Rank 0 alone has them.
    """

    def __init__(self, engine: Engine, rank: int) -> None:
        self._engine, self._rank = engine, rank
        self._kept: dict[str, torch.Tensor] = {}

    def take(self) -> list[tuple[str, torch.Tensor]]:
        """The weights as they are now, by their Hugging Face names; empty on the other ranks.

        They are valid until the next call. Under ZeRO-3 a collective of all ranks.
        """
        taken = []
        for name, parameter in self._engine.whole():
            if self._rank == 0:
                buffer = self._buffer(name, parameter)
                buffer.copy_(parameter)
                taken.append((name, buffer))
        return taken

    def _buffer(self, name: str, parameter: torch.Tensor) -> torch.Tensor:
        if name not in self._kept:
            self._kept[name] = torch.empty(
                parameter.shape, dtype=parameter.dtype, pin_memory=parameter.is_cuda
            )
        return self._kept[name]
