"""The `file` transport: each version is one safetensors file, announced in Redis and read by the replicas
(`vllm_transfer` is the workers' side).

The learner gathers a version into sealed memory that is laid out as the file (`host_memory`). On one machine
replicas open that memory as /proc/PID/fd/N, and the kernel frees it with the last process that has it open,
after any crash. It is copied to the run's folder if learner and replicas may be on several machines, if
memory is short, and for the run's last version, which outlives the learner."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hora_rl.common.files import replacing
from hora_rl.common.processes import free_memory
from hora_rl.common.weights.announcement import BroadcastClient, Confirmation, Manifest
from hora_rl.common.weights.host_memory import MemoryFile, MemoryFiles, Snapshot
from hora_rl.common.weights.weight_file import Shape, hasher

ASK_S = 5.0


def on_one_machine() -> bool:
    """Whether every replica can read this process's memory: Ray has one node."""
    import ray

    return ray.is_initialized() and sum(node["Alive"] for node in ray.nodes()) == 1


class FileTransport:
    """The files of `run`, in `folder` or in memory. `publish` announces a file; `last` is the run's last
    version. `shared` tells whether all replicas can read this process's memory, `pinned` whether a GPU fills
    it."""

    def __init__(
        self,
        folder: Path,
        run: str,
        publish: Callable[[Manifest], None],
        broadcast: BroadcastClient,
        last: int,
        shared: Callable[[], bool] = on_one_machine,
        *,
        pinned: bool = False,
    ) -> None:
        self._folder, self._run, self._last = folder, run, last
        self._publish, self._broadcast, self._shared = publish, broadcast, shared
        self._memory, self._pinned = MemoryFiles(), pinned
        self._newest = self._before = self._pushed = self._written = ""
        self._ask_again_at = 0.0

    def room(self, shapes: Sequence[Shape]) -> MemoryFile:
        """Memory for the next version, which no replica reads. Valid until the next call."""
        return self._memory.next(shapes, {self._newest, self._pushed}, pinned=self._pinned)

    def write(self, weights: Snapshot) -> Manifest:
        """Make a file of `weights`. Safe on any thread."""
        memory = weights.memory or self._copied(weights)
        memory.finish(weights.version)
        self._written, raw = memory.path, memory.bytes
        # Leave as much memory free for replicas that load the file.
        fits = weights.version < self._last and self._shared() and len(raw) <= free_memory()
        path = memory.path
        if not fits:
            self._folder.mkdir(parents=True, exist_ok=True)
            on_disk = self._folder / f"{weights.version:08d}.safetensors"
            with replacing(on_disk) as new, new.open("wb") as file:
                file.write(raw)
            path = str(on_disk.resolve())
        return Manifest(self._run, weights.version, path, hasher().update(raw).hexdigest(), len(raw))

    def announce(self, manifest: Manifest) -> None:
        """Announce the file, so replicas can pull. Delete all other files on disk, also newer ones of a lost
        run, except those that replicas may still be reading."""
        self._publish(manifest)
        if manifest.path != self._newest:
            self._before, self._newest = self._newest, manifest.path
        if self._newest not in self._memory:
            self._memory.drop({self._written, self._pushed})
        files = {str(path.resolve()) for path in self._folder.glob("*.safetensors")}
        for path in files - {self._newest, self._before, self._pushed}:
            Path(path).unlink(missing_ok=True)

    def push(self, manifest: Manifest) -> list[Confirmation]:
        """Make every replica load the file now; returns the answers of those that did."""
        self._pushed = manifest.path
        self._broadcast.update(manifest.update_info(), manifest.version)
        return self._broadcast.confirm(manifest.version)

    def out_of_reach(self) -> bool:
        """Whether the announced file is in memory that a new machine cannot read. Asks Ray every ASK_S."""
        if self._newest not in self._memory or time.monotonic() < self._ask_again_at:
            return False
        self._ask_again_at = time.monotonic() + ASK_S
        return not self._shared()

    def _copied(self, weights: Snapshot) -> MemoryFile:
        """Weights that could not be gathered in the file's layout."""
        memory = self.room(weights.shapes())
        for name, tensor in weights:
            memory.tensors[name].copy_(tensor)
        return memory
