"""Weights out: from the DeepSpeed engine to every generator replica, through vLLM's weight-transfer API.

    gather (ZeRO-3 layer by layer, in the generators' dtype) ─► file or NCCL ─► replicas load ─► state.version

`file`: parameters are streamed into RUN/weights/VERSION.safetensors as they are gathered, so no second copy of the
model exists; announcing and loading go on in the background while the next step trains. `nccl`: vLLM's own engine,
GPU to GPU, inside the step. The version counts as published when the broadcast has returned: with max_staleness 0 no
token of the next batch can come from older weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import redis
import structlog
import torch
from vllm.distributed.weight_transfer.base import (
    ParamMeta,
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
)
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

from common.config import Config
from common.errors import RunError
from common.keys import Keys
from common.weights import Manifest, advance, announce
from learner.engine import DTYPES, Engine

log = structlog.get_logger(__name__)
SAFETENSORS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
KEPT_FILES = 2
SILENT_S = 5.0
APP, DEPLOYMENT = "hora", "generator"


class EngineSource(WeightSource):
    """The learner's parameters for vLLM's trainer engines. Iterating is a collective of all ranks."""

    def __init__(self, engine: Engine, dtype: str) -> None:
        self._engine, self._dtype = engine, DTYPES[dtype]

    def metadata(self) -> list[ParamMeta]:
        return [
            # Under ZeRO-3 `shape` is that of the shard; DeepSpeed keeps the whole one beside it.
            ParamMeta(name, self._dtype, tuple(getattr(p, "ds_shape", p.shape)))
            for name, p in self._engine.hf.named_parameters()
        ]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._engine.gathered()


class BroadcastClient:
    """vLLM's weight-sync client over Serve: each call goes to every running replica and has a deadline.

    A replica that fails restarts by itself and pulls the newest version; the others go on.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._limit = config.weights.update_limit_s
        self.version = 0
        self.confirmed: list[dict[str, Any]] = []

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._all("init_weight_transfer_engine", init_info)

    def start_weight_update(self) -> None:
        self._all("start_weight_update")

    def update_weights(self, update_info: dict[str, Any] | list[dict[str, Any]]) -> None:
        self._all("update_weights", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.confirmed = self._all("finish_weight_update", weight_version or str(self.version))
        sums = {c["checksum"] for c in self.confirmed if c["version"] == self.version}
        if len(sums) > 1:
            log.error(
                "replicas of one version hold different weights", version=self.version, checksums=sorted(sums)
            )

    def _all(self, method: str, *args: Any) -> list[Any]:
        import ray
        from ray import serve
        from ray.serve.exceptions import RayServeException

        if not ray.is_initialized():
            return []  # A learner without a cluster: replicas pull the announced file.
        try:
            handle = serve.get_deployment_handle(DEPLOYMENT, APP)
            results = handle.broadcast(method, *args).results(timeout_s=self._limit, return_exceptions=True)
        except (RayServeException, TimeoutError) as error:
            log.warning("broadcast failed", method=method, error=f"{type(error).__name__}: {error}")
            return []
        for failed in (r for r in results if isinstance(r, BaseException)):
            reason = str(failed).strip().splitlines()[-1:]
            log.warning("a replica failed an update", method=method, error=reason)
        return [r for r in results if not isinstance(r, BaseException)]


@dataclass
class FileTrainerInitInfo(TrainerInitInfo):
    """Trainer side of the `file` transport: the folder of the files, the run, and what happens when one is whole."""

    backend: ClassVar[str] = "file"
    folder: Path
    run: str
    dtype: str
    announce: Callable[[Manifest], None]


class FileTrainerEngine(TrainerWeightTransferEngine[FileTrainerInitInfo]):
    """Streams the source into one safetensors file, then tells the replicas where it is."""

    init_info_cls = FileTrainerInitInfo

    def __init__(self, info: FileTrainerInitInfo, client: VLLMWeightSyncClient, source: WeightSource) -> None:
        super().__init__(client=client, source=source, is_sender=info.is_sender)
        self._info = info

    @classmethod
    def trainer_init(
        cls,
        init_info: FileTrainerInitInfo,
        *,
        client: VLLMWeightSyncClient,
        source: WeightSource | None = None,
    ) -> Self:
        if source is None:
            raise ValueError("the file transport needs a WeightSource")
        return cls(init_info, client, source)

    def write(self, version: int) -> Manifest | None:
        """Gather (all ranks) and write (the sender) version `version`; None on the other ranks."""
        assert self.source is not None
        if not self.is_sender:
            for _ in self.source:
                pass
            return None
        self._info.folder.mkdir(parents=True, exist_ok=True)
        path = self._info.folder / f"{version:08d}.safetensors"
        partial = path.with_suffix(".tmp")
        digest, size = hashlib.sha256(), 0
        with partial.open("wb") as file:
            for chunk in _safetensors(self.source, self._info.dtype):
                file.write(chunk)
                digest.update(chunk)
                size += len(chunk)
        partial.replace(path)
        return Manifest(self._info.run, version, str(path.resolve()), digest.hexdigest(), size)

    def ship(self, manifest: Manifest) -> None:
        """Announce the file, have every replica load it, forget old files."""
        self._info.announce(manifest)
        self.client.start_weight_update()
        self.client.update_weights(manifest.update_info())
        self.client.finish_weight_update(str(manifest.version))
        for old in sorted(self._info.folder.glob("*.safetensors"))[:-KEPT_FILES]:
            old.unlink(missing_ok=True)

    def send_weights(self) -> None:
        raise NotImplementedError(
            "write() and ship() are the two halves, so that training goes on between them"
        )


WeightTransferTrainerFactory.register_engine("file", FileTrainerEngine)


def _safetensors(source: WeightSource, dtype: str) -> Iterator[bytes]:
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
        yield tensor.contiguous().view(torch.uint8).numpy().tobytes()


@dataclass(slots=True)
class Timing:
    """Seconds of the newest publication: gather and write, and transfer with load (known one step later)."""

    gather: float = 0.0
    transfer: float = 0.0
    load: float = 0.0


class Publisher:
    """Publishes versions in order. `publish` is called on every rank; rank 0 drives."""

    def __init__(self, config: Config, engine: Engine, client: redis.Redis, run_dir: Path, rank: int) -> None:
        self._config, self._redis, self._rank = config, client, rank
        self._broadcast = BroadcastClient(config)
        self._source = EngineSource(engine, config.model.dtype)
        self._background = ThreadPoolExecutor(max_workers=1, thread_name_prefix="publish")
        self._shipping: Future[None] | None = None
        self._nccl: Any = None
        self._members: tuple[str, ...] = ()
        self.timing = Timing()
        info = FileTrainerInitInfo(
            run_dir / "weights", config.run.name, config.model.dtype, lambda m: announce(client, m), rank=rank
        )
        self._file: Any = WeightTransferTrainerFactory.trainer_init(
            info, client=self._broadcast, source=self._source
        )

    def publish(self, version: int) -> None:
        """Make `version` the newest. Returns after the gather (`file`) or after the transfer (`nccl`)."""
        if self._config.weights.transport == "nccl":
            self._publish_nccl(version)
            return
        self.wait()
        began = time.monotonic()
        manifest = self._file.write(version)
        self.timing.gather = time.monotonic() - began
        if manifest is not None:
            self._shipping = self._background.submit(self._ship, manifest)

    def wait(self) -> None:
        """Until the version in flight is published; raises what its publication raised."""
        shipping, self._shipping = self._shipping, None
        if shipping is not None:
            shipping.result()

    def close(self) -> None:
        self.wait()
        self._background.shutdown()

    def _ship(self, manifest: Manifest) -> None:
        began = time.monotonic()
        self._broadcast.version = manifest.version
        self._file.ship(manifest)
        self._published(manifest.version, time.monotonic() - began)

    def _published(self, version: int, seconds: float) -> None:
        advance(self._redis, self._config.run.name, version)
        self.timing.load = max((c["pause_s"] for c in self._broadcast.confirmed), default=0.0)
        self.timing.transfer = max(0.0, seconds - self.timing.load)

    def _publish_nccl(self, version: int) -> None:
        """vLLM's NCCL engine; a change of the replicas forms the group anew. A peer that dies inside a collective
        cannot be waited for: the watchdog ends this process, and the learner restarts from its checkpoint."""
        began = time.monotonic()
        with _watchdog(self._config.weights.update_limit_s, f"publishing version {version} over NCCL"):
            self._form_group()
            self._broadcast.version = version
            self._nccl.send_weights()
        if self._rank == 0:
            self._published(version, time.monotonic() - began)

    def _form_group(self) -> None:
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        members = running_replicas(self._redis, self._config.run.name)
        if members == self._members and self._nccl is not None:
            return
        if self._nccl is not None:
            self._nccl.shutdown()
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = int(probe.getsockname()[1])
        info = NCCLTrainerInitInfo(
            master_address=socket.gethostbyname(socket.gethostname()),
            master_port=port,
            world_size=1 + len(members) * self._config.generator.tensor_parallel,
            rank=self._rank,
        )
        self._nccl = WeightTransferTrainerFactory.trainer_init(
            info, client=self._broadcast, source=self._source
        )
        self._members = members


def running_replicas(client: Any, run: str) -> tuple[str, ...]:
    """Names of the generator replicas that are alive. Raises RunError when there is none to send to."""
    parts = client.hgetall(Keys(run).parts)
    alive = [
        name.decode()
        for name, text in parts.items()
        if name.startswith(b"generator/") and time.time() - json.loads(text)["seen"] < SILENT_S
    ]
    if not alive:
        raise RunError("no generator replica is running: `serve status` says why")
    return tuple(sorted(alive))


class _watchdog:
    """End the process when the block takes longer than `limit_s`."""

    def __init__(self, limit_s: float, what: str) -> None:
        self._timer = threading.Timer(limit_s, self._end)
        self._what = what

    def __enter__(self) -> None:
        self._timer.daemon = True
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _end(self) -> None:
        log.error("deadline passed; this rank ends and restarts from its checkpoint", what=self._what)
        os._exit(1)
