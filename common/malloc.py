"""Memory settings for a process that moves many messages of a megabyte."""

from __future__ import annotations

import gc

KEEP_FREED_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(256 * 2**20),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
    "MALLOC_MMAP_THRESHOLD_": str(256 * 2**20),
}
"""Environment under which glibc reuses freed memory. By default it returns a large block and the kernel
zeroes the next one page by page: a quarter of the coordinator's work at full size. Other allocators ignore
it."""


def freeze_heap() -> None:
    """Call when all lasting objects are loaded: garbage collections skip them from then on."""
    gc.collect()
    gc.freeze()
