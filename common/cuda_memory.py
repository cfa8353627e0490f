"""Memory of a GPU that a second process on the same card maps: CUDA's IPC handle as plain values.

What torch returns for a storage is checked and written as integers and hexadecimal digits, so nothing has to
be pickled. These two functions are all of the shared buffer (`common.shared_buffer`) that a CPU cannot run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field

from common.errors import UNREACHED, ConfigError, StaleWeights
from common.torch_settings import expandable_segments

LARGEST = 2**42
"""Bytes of a buffer, at most."""
KIND = 1
"""Place of the byte that says how the memory was allocated, after torch's version of the format."""
ALLOCATED = ord("c")

Size = Annotated[int, Field(ge=0, le=LARGEST)]


def _hex(least: int, most: int) -> Any:
    """Lower-case hexadecimal digits of `least` to `most` bytes."""
    return Field(pattern=rf"^(?:[0-9a-f]{{2}}){{{least},{most}}}$")


class CudaMemory(BaseModel):
    """`size` bytes at `offset` of an allocation on the card with this UUID. `handle` is torch's format and
    kind, and the 64 bytes of `cudaIpcMemHandle_t`; `event` a `cudaIpcEventHandle_t`; `counter` names the
    shared memory in which torch counts who has the memory mapped."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    uuid: str = Field(pattern=r"^[0-9A-Za-z-]{1,64}$")
    handle: str = _hex(66, 66)
    size: Size
    offset: Size
    counter: str = _hex(1, 255)
    counter_offset: Size
    event: str = _hex(0, 64)
    waits: bool


@contextmanager
def on_own_stream(device: torch.device) -> Iterator[None]:
    """On this thread use `device`, and on a card a stream that waits for no other work."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):
        yield


def used_here(tensor: torch.Tensor) -> None:
    """Keep memory that another stream allocated until this thread's stream is done with it."""
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))


def card_of(device: torch.device) -> str:
    """The UUID of the physical card, which no CUDA_VISIBLE_DEVICES changes."""
    return str(torch.cuda.get_device_properties(device).uuid)


def exported(memory: torch.Tensor) -> CudaMemory:
    """The handle of `memory` (bytes,), which must live as long as anyone may map it. Raises ConfigError for
    memory that cannot be shared."""
    storage: Any = memory.untyped_storage()
    _, handle, size, offset, counter, counter_offset, event, waits = storage._share_cuda_()
    if len(handle) != 66 or handle[KIND] != ALLOCATED:
        told = expandable_segments() or "its allocator"
        raise ConfigError(
            f"weights.transport (ipc): torch allocated memory that another process cannot map ({told}): "
            "unset expandable_segments, or set weights.transport: file"
        )
    return CudaMemory(
        uuid=card_of(memory.device),
        handle=handle.hex(),
        size=size,
        offset=offset,
        counter=counter.hex(),
        counter_offset=counter_offset,
        event=event.hex(),
        waits=waits,
    )


@contextmanager
def mapped(memory: CudaMemory, size: int, device: torch.device) -> Iterator[torch.Tensor]:
    """The `size` bytes of `memory`, until the block ends. Raises StaleWeights for another card, another size
    or another kind of memory, before anything is mapped."""
    here = card_of(device) if device.type == "cuda" else str(device)
    if here != memory.uuid:
        raise StaleWeights(
            f"{UNREACHED}: its weights are on GPU {memory.uuid}, and this generator computes on {here}. "
            "weights.transport (ipc) is for one card: use file, gloo or nccl"
        )
    handle = bytes.fromhex(memory.handle)
    if memory.size != size or handle[KIND] != ALLOCATED:
        raise StaleWeights(
            f"a handle to {memory.size} bytes of kind {handle[KIND]:#x} is not one to the {size} allocated "
            "bytes that were announced; not mapped"
        )
    storage: Any = torch.UntypedStorage
    shared = storage._new_shared_cuda(
        device.index or 0,
        handle,
        memory.size,
        memory.offset,
        bytes.fromhex(memory.counter),
        memory.counter_offset,
        bytes.fromhex(memory.event),
        memory.waits,
    )
    yield torch.empty(0, dtype=torch.uint8, device=device).set_(shared, 0, (size,), (1,))
