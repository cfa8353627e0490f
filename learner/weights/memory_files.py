"""Sealed memory files into which the learner gathers its weights, each used for one version after another."""

import os
from collections.abc import Sequence, Set

import torch

from hora_rl.common.weights.sealed import claim, release, sealed_memory
from hora_rl.common.weights.tensor_file import Shape, header_of, size_of, tensors_in
from hora_rl.common.weights.versions import path_of
from hora_rl.learner.host_block import HostBlock


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
