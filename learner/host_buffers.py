"""Host memory that is allocated once and reused: new memory for each copy costs more than the copy."""

from __future__ import annotations

from collections.abc import Hashable

import torch


class HostBuffers:
    """One buffer in host memory for each key. Buffers for CUDA tensors are pinned, so that the device can
    copy asynchronously."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, torch.Tensor] = {}

    def like(self, key: Hashable, tensor: torch.Tensor) -> torch.Tensor:
        """The buffer of `key`, with the shape and type of `tensor`; its content is undefined."""
        kept = self._kept.get(key)
        if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
            kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._kept[key] = kept
        return kept
