"""Weights out: from the DeepSpeed engine to every generator replica, through vLLM's weight-transfer API.

    gather (ZeRO-3 layer by layer, in the generators' dtype) ─► file or NCCL ─► replicas load ─► state.version

`file`: parameters are streamed into RUN/weights/VERSION.safetensors as they are gathered, so no second copy of the
model exists; announcing and loading go on in the background while the next step trains. `nccl`: vLLM's own engine,
GPU to GPU, inside the step. The version counts as published when the broadcast has returned: with max_staleness 0 no
token of the next batch can come from older weights.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
import structlog
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

from common.config import Config
from common.errors import RunError
from common.keys import Keys
from common.weights import Manifest, advance, announce
from learner.broadcast import BroadcastClient
from learner.engine import Engine
from learner.file_transport import EngineSource, FileTrainerInitInfo

log = structlog.get_logger(__name__)
SILENT_S = 5.0


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
