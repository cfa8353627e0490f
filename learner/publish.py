"""Weights out: from the DeepSpeed engine to every generator replica, through vLLM's weight-transfer API.

    gather (ZeRO-3 layer by layer, in the generators' dtype) ─► file, Gloo or NCCL ─► replicas load ─► state.version

`file`: parameters are streamed into RUN/weights/VERSION.safetensors as they are gathered, so no second copy of the
model exists; announcing and loading go on in the background while the next step trains. `gloo` and `nccl`: broadcast inside
the step to a group of the learner and the running replicas. The version counts as published when the broadcast has
returned: with max_staleness 0 no token of the next batch can come from older weights.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

from common.config import Config
from common.weights import Manifest, advance, announce
from learner.broadcast import BroadcastClient
from learner.engine import Engine
from learner.file_transport import EngineSource, FileTrainerInitInfo
from learner.transfer_group import TransferGroup


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
        self._background = ThreadPoolExecutor(max_workers=1, thread_name_prefix="publish")
        self._shipping: Future[None] | None = None
        self.timing = Timing()
        self._group: TransferGroup | None = None
        transport = config.weights.transport
        source = EngineSource(engine, config.model.dtype, engine.device if transport == "nccl" else "cpu")
        if transport != "file":
            self._group = TransferGroup(config, client, self._broadcast, source, rank)
            return
        info = FileTrainerInitInfo(
            run_dir / "weights", config.run.name, config.model.dtype, lambda m: announce(client, m), rank=rank
        )
        self._file: Any = WeightTransferTrainerFactory.trainer_init(
            info, client=self._broadcast, source=source
        )

    def publish(self, version: int) -> None:
        """Make `version` the newest. Returns after the gather (`file`) or after the transfer (`gloo`, `nccl`)."""
        if self._group is not None:
            self._send(version)
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

    def refresh(self) -> None:
        """Give the newest version to replicas that came after it was broadcast. Called on every rank while it waits."""
        if self._group is not None and self._group.wants_again():
            self._send(self._group.version)

    def _send(self, version: int) -> None:
        assert self._group is not None
        began = time.monotonic()
        self._group.send(version)
        if self._rank == 0:
            self._published(version, time.monotonic() - began)
