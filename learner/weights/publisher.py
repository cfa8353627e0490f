"""Weights out: from the DeepSpeed engine to every generator replica, through vLLM's weight-transfer API.

    copy to rank 0's host memory (ZeRO-3 layer by layer) ─► file ─► announced, state.version ─► replicas load
                                                         └─► Gloo or NCCL ─► replicas load ─► state.version

The copy alone keeps the learner; writing, announcing, sending and loading happen in the background while the
next step trains. `file`: RUN/weights/VERSION.safetensors. `gloo`, `nccl`: a broadcast to a group of rank 0
and the running replicas. A version counts as published when its file is announced, for replicas that hold
less pull it before they serve, or when they were sent it: with max_staleness 0 no token of the next batch can
come from older weights.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
import structlog
import torch
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

from common.config import Config
from common.keys import Keys
from common.weight_versions import Manifest, advance, announce, mark_of, newest_now
from learner.engine import Engine
from learner.weights.broadcast import BroadcastClient
from learner.weights.file_transport import FileTrainerInitInfo
from learner.weights.host_copy import HostCopy
from learner.weights.transfer_group import Snapshot, TransferGroup

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Timing:
    """Seconds of the newest publication: copy to host memory, and (known one step later) transfer, the pause
    of the replica that paused longest and within it the checksum; and the bytes of one version."""

    gather: float = 0.0
    transfer: float = 0.0
    load: float = 0.0
    checksum: float = 0.0
    bytes: int = 0


class Publisher:
    """Publishes versions in order. `publish` is called on every rank; rank 0 drives."""

    def __init__(self, config: Config, engine: Engine, client: redis.Redis, run_dir: Path, rank: int) -> None:
        self._config, self._redis, self._rank = config, client, rank
        self._broadcast = BroadcastClient(config)
        self._device = engine.device if config.weights.transport == "nccl" else torch.device("cpu")
        self._copy = HostCopy(engine, rank)
        self._background = ThreadPoolExecutor(max_workers=1, thread_name_prefix="publish")
        self._shipping: Future[None] | None = None
        self._aside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="push")
        self._announced = 0
        self._group = TransferGroup(config, client, self._broadcast)
        self._newest: Snapshot | None = None  # what the group was sent last
        self.timing = Timing()
        info = FileTrainerInitInfo(
            run_dir / "weights", config.run.name, config.model.dtype, self._announce, rank=rank
        )
        self._file: Any = WeightTransferTrainerFactory.trainer_init(info, client=self._broadcast, source=None)

    def publish(self, version: int) -> None:
        """Make `version` the newest. Returns when rank 0 has its copy. A collective under ZeRO-3."""
        self.wait()  # whose copy is overwritten now
        began = time.monotonic()
        self._newest = None
        tensors = self._copy.take()
        self.timing.gather = time.monotonic() - began
        self.timing.bytes = sum(t.nbytes for _, t in tensors)
        if self._rank == 0:
            weights = Snapshot(version, tensors, self._device)
            if self._config.weights.transport == "file":
                self._shipping = self._background.submit(self._ship, weights)
            else:
                self._newest = weights
                self._shipping = self._background.submit(self._send, weights)

    def refresh(self) -> None:
        """Send the newest version to replicas that came after it was broadcast. For rank 0 while it waits for
        groups: no batch may wait for a version that nobody sends any more."""
        if self._shipping is not None and not self._shipping.done():
            return
        self.wait()
        if self._newest is not None and self._group.is_behind(self._newest.version):
            self._shipping = self._background.submit(self._send, self._newest)

    def is_damaged(self) -> bool:
        """Whether a replica found the newest file, as it is now, not to be what was announced (`file`)."""
        manifest = newest_now(self._redis, self._config.run.name)
        if self._config.weights.transport != "file" or manifest is None:
            return False
        parts: Any = self._redis.hvals(Keys(self._config.run.name).parts)
        found = [manifest.version, mark_of(manifest.path)]
        return any(json.loads(part).get("damaged") == found for part in parts)

    def wait(self) -> None:
        """Until the version in flight is published; raises what its publication raised."""
        shipping, self._shipping = self._shipping, None
        if shipping is not None:
            shipping.result()

    def close(self) -> None:
        self.wait()
        self._background.shutdown()
        self._aside.shutdown()

    def _ship(self, weights: Snapshot) -> None:
        """Write the file and announce it. That replicas load it at once is left to a thread of its own: one
        that stands still keeps neither the learner nor the next version, and replicas pull what they were not
        told of."""
        manifest = self._file.write(weights.version, weights)
        self._file.announce(manifest)
        self._announced = manifest.version
        self._aside.submit(self._push, manifest)

    def _push(self, manifest: Manifest) -> None:
        if manifest.version < self._announced:
            return  # a newer one waits behind this
        began = time.monotonic()
        self._broadcast.version = manifest.version
        try:
            self._file.push(manifest)
        except Exception:  # replicas pull what they were not told of
            log.exception("replicas were not told of a version", version=manifest.version)
            return
        self._loaded(time.monotonic() - began)

    def _announce(self, manifest: Manifest) -> None:
        announce(self._redis, manifest)
        advance(self._redis, self._config.run.name, manifest.version)

    def _send(self, weights: Snapshot) -> None:
        began = time.monotonic()
        self._group.send(weights)
        advance(self._redis, self._config.run.name, weights.version)
        self._loaded(time.monotonic() - began)

    def _loaded(self, seconds: float) -> None:
        self.timing.load = max((c["pause_s"] for c in self._broadcast.confirmed), default=0.0)
        self.timing.checksum = max((c["checksum_s"] for c in self._broadcast.confirmed), default=0.0)
        self.timing.transfer = max(0.0, seconds - self.timing.load)
