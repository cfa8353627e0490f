"""The `file` transport: each version is one safetensors file, announced in Redis and read by the replicas.

On one machine the file is in anonymous memory. Replicas open /proc/PID/fd/N, and the kernel frees the memory
with the last process that has the file open, after any crash. Otherwise the file is in the run's folder: if
learner and replicas may be on several machines, if memory is short, and for the run's last version, which
outlives the learner.

Independent of vLLM. The worker side is `actors.generator.weight_engine`.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch

from hora_rl.common.files import replacing
from hora_rl.common.processes import free_memory
from hora_rl.common.weights.digests import hasher
from hora_rl.common.weights.versions import Manifest, path_of
from hora_rl.learner.engine import DTYPES
from hora_rl.learner.weights.broadcast import BroadcastClient, Confirmation
from hora_rl.learner.weights.host_copy import Snapshot

SAFETENSORS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
ASK_S = 5.0
SEALED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
Written = AbstractContextManager[tuple[str, BinaryIO]]
"""Path of a new file, and the open file, which is complete at the end of the block."""


def on_one_machine() -> bool:
    """Whether every replica can read this process's memory: Ray has one node."""
    import ray

    return ray.is_initialized() and sum(node["Alive"] for node in ray.nodes()) == 1


class FileTransport:
    """The files of `run`, in `folder` or in memory. `publish` announces a file; `last` is the run's last
    version. `shared` tells whether all replicas can read this process's memory."""

    def __init__(
        self,
        folder: Path,
        run: str,
        dtype: str,
        publish: Callable[[Manifest], None],
        broadcast: BroadcastClient,
        last: int,
        shared: Callable[[], bool] = on_one_machine,
    ) -> None:
        self._folder, self._run, self._dtype, self._last = folder, run, dtype, last
        self._publish, self._broadcast, self._shared = publish, broadcast, shared
        self._memory: dict[str, int] = {}  # descriptors of the versions in memory, by path
        self._newest = self._before = self._pushed = ""
        self._ask_again_at = 0.0

    def write(self, weights: Snapshot) -> Manifest:
        """Write `weights` to a new file. Safe on any thread."""
        header = _header(weights, self._dtype)
        size = len(header) + sum(_bytes(self._dtype, shape) for _, _, shape in weights.shapes())
        digest = hasher()
        with self._file(weights.version, size) as (path, file):
            for chunk in _chunks(weights, header):
                file.write(chunk)
                digest.update(chunk)
        return Manifest(self._run, weights.version, path, digest.hexdigest(), size)

    def announce(self, manifest: Manifest) -> None:
        """Announce the file, so replicas can pull. Delete all other files, also newer ones of a lost run,
        except those that replicas may still be reading."""
        self._publish(manifest)
        if manifest.path != self._newest:
            self._before, self._newest = self._newest, manifest.path
        for path in self._memory.keys() - {self._newest, self._pushed}:
            os.close(self._memory.pop(path))
        files = {str(path.resolve()) for path in self._folder.glob("*.safetensors")}
        for path in files - {self._newest, self._before, self._pushed}:
            Path(path).unlink(missing_ok=True)

    def push(self, manifest: Manifest) -> list[Confirmation]:
        """Make every replica load the file now; returns the answers of those that did."""
        self._pushed = manifest.path
        self._broadcast.update(manifest.update_info(), manifest.version)
        return self._broadcast.confirm(manifest.version)

    def out_of_reach(self) -> bool:
        """Whether the announced file is in memory that replicas on a new machine cannot read. Asks Ray every
        few seconds."""
        if self._newest not in self._memory or time.monotonic() < self._ask_again_at:
            return False
        self._ask_again_at = time.monotonic() + ASK_S
        return not self._shared()

    def _file(self, version: int, size: int) -> Written:
        # Leave as much memory free for replicas that load the file.
        fits = version < self._last and self._shared() and 2 * size <= free_memory()
        return self._in_memory(version) if fits else self._on_disk(version)

    @contextmanager
    def _on_disk(self, version: int) -> Iterator[tuple[str, BinaryIO]]:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{version:08d}.safetensors"
        with replacing(path) as new, new.open("wb") as file:
            yield str(path.resolve()), file

    @contextmanager
    def _in_memory(self, version: int) -> Iterator[tuple[str, BinaryIO]]:
        memory = os.memfd_create(f"hora-weights-{version}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        path = path_of(memory)
        with ExitStack() as torn:
            torn.callback(os.close, memory)
            with open(memory, "wb", closefd=False) as file:
                yield path, file
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, SEALED)
            torn.pop_all()
        self._memory[path] = memory


def _bytes(dtype: str, shape: tuple[int, ...]) -> int:
    return DTYPES[dtype].itemsize * int(torch.Size(shape).numel())


def _header(weights: Snapshot, dtype: str) -> bytes:
    """Start of a safetensors file: the length of the header, and the header."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, _, shape in weights.shapes():
        end = at + _bytes(dtype, shape)
        header[name] = {"dtype": SAFETENSORS[dtype], "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _chunks(weights: Snapshot, header: bytes) -> Iterator[bytes | memoryview]:
    """The bytes of the file, tensor by tensor."""
    yield header
    for _, tensor in weights:
        raw: Any = tensor.contiguous().flatten().view(torch.uint8).numpy()
        yield memoryview(raw)
