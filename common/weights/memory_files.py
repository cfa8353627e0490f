"""A version in the host memory of the learner's rank 0, from where it is written or sent while the next step
trains; and the sealed memory files into which it is gathered, each used for one version after another."""

import os
from collections.abc import Iterator, Sequence, Set

import torch

from hora_rl.common.weights.announcement import path_of
from hora_rl.common.weights.pinned_buffer import HostBlock
from hora_rl.common.weights.sealed import claim, release, sealed_memory
from hora_rl.common.weights.tensor_file import Shape, header_of, size_of, tensors_in


class MemoryFile:
    """A safetensors file of these tensors in memory, mapped once. `pinned`: GPUs copy into it.

    Written from its creation or `claim` to `finish`; `path` opens it from processes of this machine.
    """

    def __init__(self, shapes: Sequence[Shape], *, pinned: bool) -> None:
        self.shapes, header = list(shapes), header_of(shapes, 0)
        self._descriptor = sealed_memory(f"hora-weights-{os.getpid()}", size_of(header))
        self._block = HostBlock(size_of(header), pinned=pinned, descriptor=self._descriptor)
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
    """The files in use, usually two: the newest version's, and the next one's. A third is needed while a slow
    replica reads the version before."""

    def __init__(self) -> None:
        self._files: dict[str, MemoryFile] = {}  # by path

    def __contains__(self, path: str) -> bool:
        return path in self._files

    def next(self, shapes: Sequence[Shape], keep: Set[str], *, pinned: bool) -> MemoryFile:
        """A claimed file for a version of these shapes, at none of the paths `keep`. If replicas still read
        all others, those are left to them, and new memory takes their place."""
        for path, file in self._files.items():
            if path not in keep and file.shapes == list(shapes) and file.claim():
                return file
        self.drop(keep)
        new = MemoryFile(shapes, pinned=pinned)
        self._files[new.path] = new
        return new

    def drop(self, keep: Set[str]) -> None:
        """Free the memory of all files but those at `keep`."""
        for path in self._files.keys() - keep:
            self._files.pop(path).close()


class Snapshot:
    """One version in host memory, perhaps in the `memory` of a file; iterating puts each tensor on
    `device`."""

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
