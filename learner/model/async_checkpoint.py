"""DeepSpeed's checkpoint writer in two stages: the step waits for a copy to host memory, and a thread writes
the files. DeepSpeed's own asynchronous writers need its launcher and commit within a later step, or need an
accelerator."""

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine
from torch.utils._pytree import tree_leaves

from hora_rl.common.weights.host_memory import HostBlock, size_of


class HostState:
    """Copies of training states in host memory. Each name has one block, reused by every checkpoint."""

    def __init__(self) -> None:
        self._blocks: dict[str, HostBlock] = {}

    def copy(self, name: str, state: object) -> object:
        """Copy `state`, valid until the next copy of that name. A tied weight is copied and written once."""
        tensors = [leaf for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor)]
        distinct = {_place(tensor): tensor for tensor in tensors}
        size, block = size_of(distinct.values()), self._blocks.get(name)
        if block is None or block.size < size:
            block = self._blocks[name] = HostBlock(size, pinned=any(t.is_cuda for t in tensors))
        block.restart()
        copies = {key: block.like(tensor) for key, tensor in distinct.items()}
        for key, tensor in distinct.items():
            copies[key].copy_(tensor.detach(), non_blocking=tensor.is_cuda)
        return copy.deepcopy(state, {id(tensor): copies[_place(tensor)] for tensor in tensors})


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


class CheckpointWriter(TorchCheckpointEngine):
    """DeepSpeed's `checkpoint_engine`, which writes the same files when `taken`'s result is called."""

    def __init__(self, settings: object) -> None:
        super().__init__(settings)
        self._host = HostState()
        self._writes: list[Callable[[], None]] = []

    def save(self, state_dict: object, path: str) -> None:
        held = self._host.copy(Path(path).name, state_dict)
        self._writes.append(partial(super().save, held, path))

    def taken(self) -> Callable[[], None]:
        """Return a function that writes the files of the last saved checkpoint, on any thread."""
        writes, self._writes = self._writes, []
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # copies to pinned memory are asynchronous

        def write() -> None:
            for each in writes:
                each()

        return write
