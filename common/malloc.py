"""Memory settings for a process that handles many messages of a megabyte."""

from __future__ import annotations

import gc

KEEP_FREED_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(256 * 2**20),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
    "MALLOC_MMAP_THRESHOLD_": str(256 * 2**20),
}
"""Environment variables that make glibc reuse freed memory. By default glibc returns large blocks and the
kernel zeroes new pages, a quarter of the coordinator's work at full size. Other allocators ignore them."""


def freeze_heap() -> None:
    """Call after all long-lived objects are loaded: garbage collections then skip them."""
    gc.collect()
    gc.freeze()
