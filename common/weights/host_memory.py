"""Host memory of weights: blocks that are allocated once and reused, because allocating costs more than a
copy; and a version in rank 0's memory, from where it is written or sent while the next step trains, perhaps
in one of a few sealed files that serve one version after another."""

import mmap
import os
import weakref
from collections.abc import Iterable, Iterator, Sequence, Set

import torch

from hora_rl.common.weights.announcement import path_of
from hora_rl.common.weights.weight_file import (
    Shape,
    claim,
    file_size,
    header_of,
    release,
    sealed_memory,
    tensors_in,
)

ALIGNED = 64


def size_of(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of a block for these tensors; a parameter sharded by ZeRO-3 counts in full."""
    return sum(_aligned(getattr(t, "ds_numel", t.numel()) * t.element_size()) for t in tensors)


class HostBlock:
    """One block of `size` bytes, filled from the start: of the file `descriptor`, or private. `pinned`: GPUs
    copy into it asynchronously (torch's allocator would round every block up to a power of two)."""

    def __init__(self, size: int, *, pinned: bool, descriptor: int = -1) -> None:
        self.size, self._at = size, 0
        self._memory = mmap.mmap(descriptor, max(1, size))
        if pinned:
            block = torch.frombuffer(self._memory, dtype=torch.uint8)
            register(block)
            weakref.finalize(self, unregister, block).atexit = False

    @property
    def raw(self) -> mmap.mmap:
        return self._memory

    def restart(self) -> None:
        self._at = 0

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """The next tensor in the block, uninitialised, like `tensor`. Each has a separate storage:
        `torch.save` writes full storages, and refuses one with several types."""
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


class MemoryFile:
    """A safetensors file of these tensors in memory, mapped once. `pinned`: GPUs copy into it.

    Written from its creation or `claim` to `finish`; `path` opens it from processes of this machine."""

    def __init__(self, shapes: Sequence[Shape], *, pinned: bool) -> None:
        self.shapes, header = list(shapes), header_of(shapes, 0)
        size = file_size(header)
        self._descriptor = sealed_memory(f"hora-weights-{os.getpid()}", size)
        self._block = HostBlock(size, pinned=pinned, descriptor=self._descriptor)
        self.path = path_of(self._descriptor)
        self.tensors = dict(tensors_in(torch.frombuffer(self._block.raw, dtype=torch.uint8), header))
        """The tensors' places, by name."""

    @property
    def bytes(self) -> memoryview:
        return memoryview(self._block.raw)

    def claim(self) -> bool:
        """Take the file for a new version. False if a replica reads it."""
        return claim(self._descriptor)

    def finish(self, version: int) -> None:
        """Name the version of the tensors, which are complete, and let replicas read them."""
        header = header_of(self.shapes, version)
        self.bytes[: len(header)] = header
        os.utime(self._descriptor)  # distinguishes this version from an earlier one (`mark_of`)
        release(self._descriptor)

    def close(self) -> None:
        """Take the path away. Who has the file open or mapped keeps it, also this process its tensors."""
        os.close(self._descriptor)


class MemoryFiles:
    """The files in use: the newest version's, the next one's, and a third while a slow replica reads."""

    def __init__(self) -> None:
        self._files: dict[str, MemoryFile] = {}  # by path

    def __contains__(self, path: str) -> bool:
        return path in self._files

    def next(self, shapes: Sequence[Shape], keep: Set[str], *, pinned: bool) -> MemoryFile:
        """A claimed file for a version of these shapes, at none of the paths `keep`. If replicas still read
        all others, new memory takes their place."""
        for path, file in self._files.items():
            if path not in keep and file.shapes == list(shapes) and file.claim():
                return file
        self.drop(keep)
        new = MemoryFile(shapes, pinned=pinned)
        self._files[new.path] = new
        return new

    def drop(self, keep: Set[str]) -> None:
        for path in self._files.keys() - keep:
            self._files.pop(path).close()


class Snapshot:
    """A version in host memory, perhaps in a file's `memory`; iterating puts each tensor on `device`."""

    def __init__(
        self,
        version: int,
        tensors: list[tuple[str, torch.Tensor]],
        device: torch.device,
        memory: MemoryFile | None = None,
    ) -> None:
        self.version, self.device, self.memory = version, device, memory
        self._tensors = tensors

    def shapes(self) -> list[Shape]:
        """Name, type and shape of each tensor, in the order of iteration."""
        return [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self._tensors]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for _, tensor in self._tensors)

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, tensor.to(self.device)) for name, tensor in self._tensors)
