"""Memory of a process that moves many messages of a megabyte: what the C library does with freed blocks, and Python's garbage
collector with lasting objects."""

from __future__ import annotations

import ctypes
import gc
import platform

KEPT_BYTES, STEP_BYTES = 256 * 2**20, 64 * 2**20
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # glibc, malloc.h
ENVIRONMENT = {
    "MALLOC_TRIM_THRESHOLD_": str(KEPT_BYTES),
    "MALLOC_TOP_PAD_": str(STEP_BYTES),
    "MALLOC_MMAP_THRESHOLD_": str(KEPT_BYTES),
}
"""The same for a process that is started: read by glibc, unknown to other allocators."""


def keep_freed_memory() -> None:
    """Let this process reuse freed memory, up to KEPT_BYTES of it, and ask for more in steps of STEP_BYTES.

    By default glibc gives a large block back and the kernel zeroes the next one page by page: a quarter of what the
    coordinator does at full size. Nothing happens where the C library is another one.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        libc.mallopt(M_TOP_PAD, STEP_BYTES)
        libc.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)


def freeze_heap() -> None:
    """Call when everything that lasts is loaded: collections of garbage pass over it from here on."""
    gc.collect()
    gc.freeze()
