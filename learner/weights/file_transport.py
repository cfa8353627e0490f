"""The `file` transport: one version is written as one safetensors file and announced; replicas read it.

It needs nothing of vLLM's. The worker side is `actors.generator.weight_engine`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from common.files import replacing, sync
from common.weight_versions import Manifest
from learner.engine import DTYPES
from learner.weights.broadcast import BroadcastClient, Confirmation
from learner.weights.host_copy import Snapshot

SAFETENSORS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
KEPT_FILES = 2


class FileTransport:
    """The files of `run` in `folder`. `publish` announces a file that is on the disk."""

    def __init__(
        self,
        folder: Path,
        run: str,
        dtype: str,
        publish: Callable[[Manifest], None],
        broadcast: BroadcastClient,
    ) -> None:
        self._folder, self._run, self._dtype = folder, run, dtype
        self._publish, self._broadcast = publish, broadcast
        self._pushed = ""

    def write(self, weights: Snapshot) -> Manifest:
        """Write `weights` to a file of their own. Safe on any thread."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{weights.version:08d}.safetensors"
        digest, size = hashlib.sha256(), 0
        with replacing(path) as new, new.open("wb") as file:
            for chunk in _safetensors(weights, self._dtype):
                file.write(chunk)
                digest.update(chunk)
                size += len(chunk)
        return Manifest(self._run, weights.version, str(path.resolve()), digest.hexdigest(), size)

    def announce(self, manifest: Manifest) -> None:
        """Announce the file once it is on the disk, from when replicas can pull it. Delete the others, also
        newer ones of a run that was lost, except those that replicas may still be reading."""
        sync(Path(manifest.path), self._folder)
        self._publish(manifest)
        files = [str(path.resolve()) for path in sorted(self._folder.glob("*.safetensors"))]
        end = files.index(manifest.path) + 1
        for path in {*files} - {*files[max(0, end - KEPT_FILES) : end], self._pushed}:
            Path(path).unlink(missing_ok=True)

    def push(self, manifest: Manifest) -> list[Confirmation]:
        """Have every replica load the file now; the answers of those that did."""
        self._pushed = manifest.path
        self._broadcast.update(manifest.update_info(), manifest.version)
        return self._broadcast.confirm(manifest.version)


def _safetensors(weights: Snapshot, dtype: str) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file: length of the header, header, then each tensor."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at, width = 0, DTYPES[dtype].itemsize
    for name, _, shape in weights.shapes():
        end = at + width * int(torch.Size(shape).numel())
        header[name] = {"dtype": SAFETENSORS[dtype], "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for _, tensor in weights:
        raw: Any = tensor.contiguous().flatten().view(torch.uint8).numpy()
        yield memoryview(raw)
