"""Host memory that is allocated once and reused: allocating for each copy costs more than the copy."""

import mmap
import weakref
from collections.abc import Iterable

import torch

ALIGNED = 64


def size_of(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of a block for these tensors; a parameter sharded by ZeRO-3 counts in full."""
    return sum(_aligned(getattr(t, "ds_numel", t.numel()) * t.element_size()) for t in tensors)


class HostBlock:
    """One block of `size` bytes, filled from the start: of the file `descriptor`, or private. `pinned`: GPUs
    copy into the block asynchronously.

    torch's allocator of pinned memory would round every block up to a power of two.
    """

    def __init__(self, size: int, *, pinned: bool, descriptor: int = -1) -> None:
        self.size, self._at = size, 0
        self._memory = mmap.mmap(descriptor, max(1, size))
        if pinned:
            block = torch.frombuffer(self._memory, dtype=torch.uint8)
            register(block)
            weakref.finalize(self, unregister, block).atexit = False

    @property
    def raw(self) -> mmap.mmap:
        """All bytes."""
        return self._memory

    def restart(self) -> None:
        """Fill from the start again, overwriting the old content."""
        self._at = 0

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """The next tensor in the block, uninitialised, with the shape and type of `tensor`. Each has a
        separate storage: `torch.save` writes full storages, and refuses one with several types."""
        end = self._at + tensor.nbytes
        if end > self.size:
            raise ValueError(f"a block of {self.size} bytes has no room for {end}")
        if not tensor.numel():
            return torch.empty_like(tensor, device="cpu")
        begin, self._at = self._at, _aligned(end)
        view = torch.frombuffer(self._memory, dtype=tensor.dtype, count=tensor.numel(), offset=begin)
        return view.view(tensor.shape)


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def register(memory: torch.Tensor) -> None:
    """Pin host memory. Raises RuntimeError if CUDA refuses it."""
    torch.cuda.check_error(int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)))


def unregister(memory: torch.Tensor) -> None:
    torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())
