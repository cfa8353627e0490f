"""The `file` transport: parameters are streamed into one safetensors file as they are gathered, then
announced.

No second copy of the model ever exists: a tensor is gathered, written, hashed and forgotten.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
)
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

from common.files import replacing, sync
from common.weight_versions import Manifest
from learner.engine import DTYPES

SAFETENSORS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
KEPT_FILES = 2


@dataclass
class FileTrainerInitInfo(TrainerInitInfo):
    """Trainer side of the `file` transport: the folder of the files, the run, and what happens when one is
    whole."""

    backend: ClassVar[str] = "file"
    folder: Path
    run: str
    dtype: str
    announce: Callable[[Manifest], None]


class FileTrainerEngine(TrainerWeightTransferEngine[FileTrainerInitInfo]):
    """Streams the source into one safetensors file, then tells the replicas where it is."""

    init_info_cls = FileTrainerInitInfo

    def __init__(self, info: FileTrainerInitInfo, client: VLLMWeightSyncClient) -> None:
        super().__init__(client=client, source=None, is_sender=info.is_sender)
        self._info = info
        self._pushed = ""

    @classmethod
    def trainer_init(
        cls,
        init_info: FileTrainerInitInfo,
        *,
        client: VLLMWeightSyncClient,
        source: WeightSource | None = None,
    ) -> Self:
        """`source` is given with each version instead, to `write`."""
        return cls(init_info, client)

    def write(self, version: int, source: WeightSource) -> Manifest:
        """Write `source` as version `version`. Rank 0 alone, on any thread."""
        self._info.folder.mkdir(parents=True, exist_ok=True)
        path = self._info.folder / f"{version:08d}.safetensors"
        digest, size = hashlib.sha256(), 0
        with replacing(path) as new, new.open("wb") as file:
            for chunk in _safetensors(source, self._info.dtype):
                file.write(chunk)
                digest.update(chunk)
                size += len(chunk)
        return Manifest(self._info.run, version, str(path.resolve()), digest.hexdigest(), size)

    def announce(self, manifest: Manifest) -> None:
        """Say that the file is there, when the disk has it: from here on replicas can pull it. Old files are
        forgotten, but for the one that replicas were told of last: they may be at it."""
        sync(Path(manifest.path), self._info.folder)
        self._info.announce(manifest)
        for old in sorted(self._info.folder.glob("*.safetensors"))[:-KEPT_FILES]:
            if str(old.resolve()) != self._pushed:
                old.unlink(missing_ok=True)

    def push(self, manifest: Manifest) -> None:
        """Have every replica load the file now."""
        self._pushed = manifest.path
        self.client.start_weight_update()
        self.client.update_weights(manifest.update_info())
        self.client.finish_weight_update(str(manifest.version))

    def send_weights(self) -> None:
        raise NotImplementedError(
            "write(), announce() and push() are its parts, so that training goes on between them"
        )


WeightTransferTrainerFactory.register_engine("file", FileTrainerEngine)


def _safetensors(source: WeightSource, dtype: str) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file: length of the header, header, then each tensor as it is gathered."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at, width = 0, DTYPES[dtype].itemsize
    metadata = source.metadata()
    for meta in metadata:
        end = at + width * int(torch.Size(meta.shape).numel())
        header[meta.name] = {
            "dtype": SAFETENSORS[dtype],
            "shape": list(meta.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for meta, (name, tensor) in zip(metadata, source, strict=True):
        if name != meta.name or tuple(tensor.shape) != meta.shape:
            raise AssertionError(f"gathered {name} {tuple(tensor.shape)}, declared {meta.name} {meta.shape}")
        yield memoryview(tensor.contiguous().flatten().view(torch.uint8).numpy())
