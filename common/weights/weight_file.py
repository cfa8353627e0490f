"""Weights as files. The safetensors format: a header with the place of every tensor, then their bytes without
gaps (https://github.com/huggingface/safetensors#format). Sealed memory that the learner writes again and
replicas read: a version is read whole or not at all. Digests: BLAKE3 on all cores.

The proof is the kernel's. A file in anonymous memory never shrinks or grows after it is sealed, so a mapping
never raises SIGBUS. A reader opens it under a shared lock, the writer overwrites it under an exclusive one,
and neither waits for the other. A lock belongs to the open file: it lasts while a descriptor or a mapping of
it exists, and ends with a killed process.

torch is imported where tensors are made: what only reads a header or a digest starts without it."""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from blake3 import blake3

from hora_rl.common.errors import StaleWeights

if TYPE_CHECKING:
    import torch


BLOCK = 2**23
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
DTYPES = {name: dtype for dtype, name in NAMES.items()}
ALIGNED = 64
Shape = tuple[str, "torch.dtype", tuple[int, ...]]
"""Name, type and shape of a tensor."""


def sealed_memory(name: str, size: int) -> int:
    """A claimed descriptor of new anonymous memory of `size` bytes, whose size is fixed."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    claim(descriptor)  # before the seals: the number may have been that of an older file
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    return descriptor


def is_sealed(descriptor: int) -> bool:
    """Whether the file is memory whose size is fixed; False for a file on disk."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS == SEALS
    except OSError:  # EINVAL: the file system has no seals
        return False


def claim(descriptor: int) -> bool:
    """Lock sealed memory to write to it. False if someone reads it. `release` ends the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def release(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def share(descriptor: int) -> None:
    """Lock sealed memory to read it, while the file or a mapping of it is open. Raises StaleWeights if it is
    being overwritten. A file on disk is never overwritten and needs no lock."""
    if not is_sealed(descriptor):
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StaleWeights("the memory of these weights gets a newer version") from None


def private(descriptor: int) -> mmap.mmap:
    """The file as memory of this process, from which it is read; writes to it change no file."""
    return mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)


def hasher() -> blake3:
    """An empty digest; `update` takes bytes in order, `hexdigest` returns 64 digits."""
    return blake3(max_threads=blake3.AUTO)


def digest_of(file: BinaryIO) -> str:
    """The digest of the whole `file`. Sealed memory is mapped, and all cores read it. Any other file is read
    in blocks: one that shrinks while it is mapped, as on a network, would crash the process."""
    digest = hasher()
    if is_sealed(file.fileno()):
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
            return str(digest.update(memory).hexdigest())
    block = memoryview(bytearray(BLOCK))
    while count := file.readinto(block):  # type: ignore[attr-defined]
        digest.update(block[:count])
    return digest.hexdigest()


def header_of(shapes: Sequence[Shape], version: int) -> bytes:
    """The start of a file of these tensors. Its length does not depend on `version`, below 10⁸."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "version": f"{version:08d}"}}
    at = 0
    for name, dtype, shape in sorted(shapes, key=lambda shape: -shape[1].itemsize):  # each is aligned
        end = at + dtype.itemsize * math.prod(shape)
        header[name] = {
            "dtype": NAMES[str(dtype).removeprefix("torch.")],
            "shape": list(shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % ALIGNED)
    return len(text).to_bytes(8, "little") + text


def file_size(header: bytes) -> int:
    return len(header) + max((entry["data_offsets"][1] for _, entry in _entries(header)), default=0)


def tensors_in(raw: torch.Tensor, header: bytes) -> Iterator[tuple[str, torch.Tensor]]:
    """Views of the tensors of a file, whose bytes are `raw` (uint8, on any device), in order of place."""
    import torch

    for name, entry in _entries(header):
        begin, end = (len(header) + offset for offset in entry["data_offsets"])
        yield name, raw[begin:end].view(getattr(torch, DTYPES[entry["dtype"]])).view(entry["shape"])


def header_in(raw: mmap.mmap) -> bytes:
    return raw[: 8 + int.from_bytes(raw[:8], "little")]


def version_in(header: bytes) -> int | None:
    """The version that the header names; None if it names none or is damaged."""
    try:
        return int(json.loads(header[8:])["__metadata__"]["version"])
    except (ValueError, KeyError, TypeError):
        return None


def _entries(header: bytes) -> list[tuple[str, dict[str, Any]]]:
    entries: dict[str, Any] = json.loads(header[8:])
    entries.pop("__metadata__", None)
    return sorted(entries.items(), key=lambda entry: entry[1]["data_offsets"][0])
