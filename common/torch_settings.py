"""Settings of torch that matter before torch is loaded: a start that only checks them stays light."""

from __future__ import annotations

import os

ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def expandable_segments() -> str | None:
    """`VARIABLE=value` where torch is told to allocate memory that only a debugger's rights would share."""
    for name in ALLOCATOR:
        value = os.environ.get(name, "")
        if "expandable_segments:true" in value.lower().replace(" ", ""):
            return f"{name}={value}"
    return None
