"""The safetensors format: a header with the place of every tensor, then their bytes without gaps.

https://github.com/huggingface/safetensors#format

torch is imported where tensors are made: what only reads a header starts without it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from mmap import mmap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
DTYPES = {name: dtype for dtype, name in NAMES.items()}
ALIGNED = 64
Shape = tuple[str, "torch.dtype", tuple[int, ...]]
"""Name, type and shape of a tensor."""


def header_of(shapes: Sequence[Shape], version: int) -> bytes:
    """The start of a file of these tensors. Its length does not depend on `version`, below 10⁸."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "version": f"{version:08d}"}}
    at = 0
    for name, dtype, shape in sorted(
        shapes, key=lambda shape: -shape[1].itemsize
    ):  # each at its own alignment
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


def size_of(header: bytes) -> int:
    """Bytes of the whole file."""
    return len(header) + max((entry["data_offsets"][1] for _, entry in _entries(header)), default=0)


def tensors_in(raw: torch.Tensor, header: bytes) -> Iterator[tuple[str, torch.Tensor]]:
    """Views of the tensors of a file, whose bytes are `raw` (uint8, on any device), in order of place."""
    import torch

    for name, entry in _entries(header):
        begin, end = (len(header) + offset for offset in entry["data_offsets"])
        yield name, raw[begin:end].view(getattr(torch, DTYPES[entry["dtype"]])).view(entry["shape"])


def header_in(raw: mmap) -> bytes:
    """The header of a file."""
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
