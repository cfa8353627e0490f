"""The tensors of a published file in a worker, without a copy in host memory.

On a CPU they are views of the mapped file. A GPU gets the whole file in one copy while the model runs, or
where that would leave too little memory free, each tensor when it is loaded. Sealed memory is mapped and
registered with CUDA once and copied at the full speed of the bus; the learner uses the same few files again
and again."""

import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import BinaryIO

import structlog
import torch

from hora_rl.common.weights.host_memory import register, unregister
from hora_rl.common.weights.weight_file import header_in, is_sealed, private, share, tensors_in

log = structlog.get_logger(__name__)
Tensors = Iterable[tuple[str, torch.Tensor]]
SPARE = 0.05
"""Share of a card that stays free beside a copy of all weights: a learner on the same card may need it."""
FILES = 3
"""Most files kept registered: the learner uses no more, unless a replica is slow."""


def mapped(path: str) -> Tensors:
    """Views of the file at `path`. Its memory stays locked until the last of them is gone."""
    with open(path, "rb") as file:
        share(file.fileno())
        memory = private(file.fileno())
    return tensors_in(torch.frombuffer(memory, dtype=torch.uint8), header_in(memory))


class DeviceCopies:
    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)
        self._registered: dict[int, mmap.mmap] = {}  # by inode
        self._of = ""  # name of the memory of one learner process

    def receive(self, path: str, *, ahead: bool) -> Tensors:
        """The tensors of the file at `path` on the device. `ahead`: copied now, in one piece, if that leaves
        `SPARE` of the device free; otherwise each when it is asked for. The file stays locked until they are
        copied."""
        with ExitStack() as locked:
            file = locked.enter_context(open(path, "rb"))
            share(file.fileno())
            memory = self._memory_of(path, file)
            raw, header = torch.frombuffer(memory, dtype=torch.uint8), header_in(memory)
            if ahead and (room := self._room(raw.nbytes)) is not None:
                return tensors_in(self._copied(raw, room), header)
            held = locked.pop_all()
        return self._one_by_one(raw, header, held)

    def _one_by_one(
        self, raw: torch.Tensor, header: bytes, held: ExitStack
    ) -> Iterator[tuple[str, torch.Tensor]]:
        with held:
            for name, tensor in tensors_in(raw, header):
                yield name, tensor.to(self._device)

    def _room(self, size: int) -> torch.Tensor | None:
        """Memory for a copy; None if it would leave too little free for engines and learner on the card."""
        if not self._leaves_spare(size):
            return None
        try:
            with torch.cuda.stream(self._stream):
                room = torch.empty(size, dtype=torch.uint8, device=self._device)
        except torch.OutOfMemoryError:
            return None
        if self._leaves_spare(0):
            return room
        del room
        torch.cuda.empty_cache()
        return None

    def _leaves_spare(self, size: int) -> bool:
        free, total = torch.cuda.mem_get_info(self._device)
        return free - size >= SPARE * total

    def _copied(self, raw: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
        with torch.cuda.stream(self._stream):
            room.copy_(raw, non_blocking=True)
        self._stream.synchronize()
        return room

    def _memory_of(self, path: str, file: BinaryIO) -> mmap.mmap:
        """The mapping of the file. One of sealed memory is kept, and holds no lock: `file` does. It must be
        writable to be registered; nothing writes to it."""
        if not is_sealed(file.fileno()):
            return private(file.fileno())
        name, inode = os.readlink(path), os.fstat(file.fileno()).st_ino
        if name != self._of:  # the learner before this one is gone, and its memory is only held here
            self._free(0)
            self._of = name
        if inode not in self._registered:
            self._free(FILES - 1)
            with open(path, "r+b") as writable:
                memory = mmap.mmap(writable.fileno(), 0)
            try:
                register(torch.frombuffer(memory, dtype=torch.uint8))
            except RuntimeError as error:
                log.warning("weights are copied without registered memory, more slowly", reason=str(error))
                return memory
            self._registered[inode] = memory
        return self._registered[inode]

    def _free(self, left: int) -> None:
        for inode in [*self._registered][: len(self._registered) - left]:
            unregister(torch.frombuffer(self._registered.pop(inode), dtype=torch.uint8))
