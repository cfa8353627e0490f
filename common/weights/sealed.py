"""Sealed memory files that the learner writes again and replicas read: a version is read whole or not at all;
and digests of files: BLAKE3 on all cores, on one core several times as fast as SHA-256.

The proof is the kernel's. A file in anonymous memory never shrinks or grows after it is sealed, so a mapping
never raises SIGBUS. A reader opens it under a shared lock, the writer overwrites it under an exclusive one,
and neither waits for the other. A lock belongs to the open file: it lasts while a descriptor or a mapping of
it exists, and ends with a killed process. So the writer never gets memory that someone still reads, and a
reader never gets memory that is being written.
"""

import fcntl
import mmap
import os
from typing import BinaryIO

from blake3 import blake3

from hora_rl.common.errors import StaleWeights

BLOCK = 2**23
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


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
