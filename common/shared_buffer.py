"""One buffer of weights that one process fills and processes on the same machine copy: in host memory, or in
the memory of one GPU.

    the owner:  exclusive lock ─► filling ─► ready, fill n ─► unlock ─► tells readers address and n
    a reader:   shared lock ─► is it ready, and fill n? ─► map ─► copy ─► unmap ─► unlock

The lock is the kernel's own (`flock`) on a file in memory without a name, which readers open at
/proc/PID/fd/N. So nobody writes what another reads, whatever is late. A process that dies gives its lock
back, and the memory is freed with the last process that has it open. The file's first page says what the
buffer holds. Host memory follows in the file; a GPU's memory is mapped by its handle (`common.cuda_memory`).
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import struct
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from pydantic import BaseModel, ConfigDict, Field

from common import cuda_memory
from common.cuda_memory import CudaMemory, Size
from common.errors import UNREACHED, StaleWeights
from common.processes import this_machine

HEAD = mmap.PAGESIZE
FORM = struct.Struct("<8s16sqqq")
MAGIC = b"HORAWTS1"
FILLING, READY = 0, 1
POLL_S = 0.005
ALIGNED = 256
DTYPES = {str(t).removeprefix("torch."): t for t in (torch.float32, torch.bfloat16, torch.float16)}


class Address(BaseModel):
    """Where fill `fill` of a buffer of `size` bytes is, as plain values for any channel. `token` tells the
    buffer from whatever else has its process id and descriptor later."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    machine: str = Field(max_length=80)
    pid: int = Field(ge=1)
    descriptor: int = Field(ge=0)
    token: str = Field(pattern=r"^[0-9a-f]{32}$")
    size: Size
    fill: int = Field(ge=1)
    cuda: CudaMemory | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes `begin` to `end` of a buffer hold a tensor."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int

    def of(self, memory: torch.Tensor) -> torch.Tensor:
        """The tensor in `memory` (bytes,)."""
        return memory[self.begin : self.end].view(self.dtype).view(self.shape)


def placed(shapes: Iterable[tuple[str, torch.dtype, Sequence[int]]]) -> list[Place]:
    """Places of tensors one after the other, each at a multiple of `ALIGNED` bytes."""
    places, at = list[Place](), 0
    for name, dtype, shape in shapes:
        if any(size < 0 for size in shape):
            raise ValueError(f"tensor {name!r} has shape {list(shape)}")
        end = at + dtype.itemsize * torch.Size(shape).numel()
        places.append(Place(name, dtype, tuple(shape), at, end))
        at = -(-end // ALIGNED) * ALIGNED
    return places


def size_of(places: Sequence[Place]) -> int:
    """Bytes of a buffer that holds `places`."""
    return max((place.end for place in places), default=0)


class SharedBuffer:
    """`memory` (bytes,) on `device`, which only this process writes, and only within `filling`."""

    def __init__(self, size: int, device: torch.device) -> None:
        on_card = device.type == "cuda"
        self._file = os.memfd_create("hora-weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        weakref.finalize(self, os.close, self._file)
        # Pages exist from now on, and no one can cut the file under a reader.
        os.posix_fallocate(self._file, 0, HEAD + size * (not on_card))
        fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self._map = mmap.mmap(self._file, 0)
        self._size, self._token, self._fill = size, secrets.token_bytes(16), 0
        self._mark(FILLING)
        if on_card:
            self.memory = torch.empty(size, dtype=torch.uint8, device=device)
            self._cuda: CudaMemory | None = cuda_memory.exported(self.memory)
        else:
            self.memory = torch.frombuffer(self._map, dtype=torch.uint8, offset=HEAD, count=size)
            self._cuda = None

    @contextmanager
    def filling(self, limit_s: float) -> Iterator[torch.Tensor]:
        """`memory`, for as long as nobody reads. What the block leaves is the next fill; nobody reads what a
        block left that raised. Raises TimeoutError when a reader has not ended after `limit_s`."""
        _lock_alone(self._file, limit_s)
        try:
            self._mark(FILLING)
            yield self.memory
            settle(self.memory.device)
            self._fill += 1
            self._mark(READY)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    @property
    def address(self) -> Address:
        """Of the newest fill."""
        return Address(
            machine=this_machine(),
            pid=os.getpid(),
            descriptor=self._file,
            token=self._token.hex(),
            size=self._size,
            fill=self._fill,
            cuda=self._cuda,
        )

    def _mark(self, state: int) -> None:
        FORM.pack_into(self._map, 0, MAGIC, self._token, self._size, state, self._fill)


@contextmanager
def reading(address: Address, device: torch.device) -> Iterator[torch.Tensor]:
    """The memory (bytes,) at `address`, which nobody changes until the block ends. Keep no view of it.

    Raises StaleWeights when the owner is gone, on another machine or card, or has begun to fill it anew.
    """
    file = _opened(address)
    try:
        _check_owner(file, address)
        _lock_with_others(file, address)
        _check_fill(file, address)
        if address.cuda is not None:
            with cuda_memory.mapped(address.cuda, address.size, device) as memory:
                yield memory
                settle(device)
        else:
            # Private: a reader that writes would change its own copy.
            own = mmap.mmap(file, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            yield torch.frombuffer(own, dtype=torch.uint8, offset=HEAD, count=address.size)
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough: a mapping that lives on has it open too
        os.close(file)


def copied(address: Address, device: torch.device) -> torch.Tensor:
    """A copy (bytes,) of what `reading` gives, where that lies."""
    with reading(address, device) as memory:
        return memory.clone()


def settle(device: torch.device) -> None:
    """Wait until the device has done what this thread asked of it."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def _lock_alone(file: int, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"a generator still reads the last version of the weights after {limit_s:g} s "
                    "(weights.update_limit_s); it is not overwritten"
                ) from None
            time.sleep(POLL_S)


def _opened(address: Address) -> int:
    if address.machine != this_machine():
        raise StaleWeights(_unreached("it runs on another machine or in another container"))
    try:
        # Not blocking: another process may have a pipe there by now.
        path = f"/proc/{address.pid}/fd/{address.descriptor}"
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise StaleWeights(_unreached(f"process {address.pid}: {error.strerror}")) from None


def _lock_with_others(file: int, address: Address) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StaleWeights(f"fill {address.fill} of the weights is being overwritten by newer ones") from None


def _check_owner(file: int, address: Address) -> None:
    try:
        head = os.pread(file, FORM.size, 0)
    except OSError:  # a pipe or a socket
        head = b""
    if len(head) < FORM.size or FORM.unpack(head)[:2] != (MAGIC, bytes.fromhex(address.token)):
        raise StaleWeights(_unreached(f"process {address.pid} has another file there"))


def _check_fill(file: int, address: Address) -> None:
    """Raise StaleWeights unless the first page and the file's size are those of `address`."""
    _, _, size, state, fill = FORM.unpack(os.pread(file, FORM.size, 0))
    if (state, fill) != (READY, address.fill):
        raise StaleWeights(f"the buffer holds fill {fill} of the weights, not {address.fill}")
    there = os.fstat(file).st_size - HEAD
    if size != address.size or there != (size if address.cuda is None else 0):
        raise StaleWeights(
            f"{address.size} bytes of weights were announced, and the buffer has {size}, {there} of them in "
            "host memory; not mapped"
        )


def _unreached(why: str) -> str:
    return (
        f"{UNREACHED}: {why}. weights.transport (ipc) is for processes of one machine or container: use "
        "file, gloo or nccl"
    )
