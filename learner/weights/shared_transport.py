"""The `ipc` transport: a version lies once, in memory that the generators on this machine copy. On a GPU that
is memory of the card that they share with the learner; without one it is host memory.

    lock ─► live weights copied into the buffer ─► unlock ─► roll call ─► replicas copy, check, load

The buffer is also the learner's own copy of the newest version, so a replica that starts later is sent the
same. The next version waits until nobody reads this one (`common.shared_buffer`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import redis
import structlog
import torch

from common.config import Config
from common.cuda_memory import on_own_stream
from common.shared_buffer import Place, SharedBuffer, placed, size_of
from common.weight_hash import TensorHash
from learner.engine import Engine
from learner.weights.broadcast import BroadcastClient, Confirmation
from learner.weights.host_copy import HostCopy, Snapshot
from learner.weights.lagging import Lagging

log = structlog.get_logger(__name__)


class SharedTransport:
    """Used only on rank 0 of the learner. `clock` gives seconds since the epoch."""

    def __init__(
        self,
        config: Config,
        engine: Engine,
        client: redis.Redis,
        broadcast: BroadcastClient,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._engine, self._broadcast = engine, broadcast
        self._limit = config.weights.update_limit_s
        self._lagging = Lagging(config, client, clock)
        self._hash = TensorHash()
        self._buffer: SharedBuffer | None = None
        self._places: list[Place] = []
        self._by_way: HostCopy | None = HostCopy(engine, rank=0)

    def take(self) -> list[tuple[str, torch.Tensor]]:
        """The weights as they are now, by their names in a model's files, in the buffer. They are valid until
        the next call, which raises TimeoutError when somebody reads them for too long."""
        if self._buffer is None:
            return self._first()
        tensors: Iterable[tuple[str, torch.Tensor]]
        tensors = self._engine.whole() if self._by_way is None else self._by_way.take()
        with self._buffer.filling(self._limit) as memory:
            for place, (name, parameter) in zip(self._places, tensors, strict=True):
                if place.name != name:
                    raise RuntimeError(f"{name} is where {place.name} was in the first version")
                place.of(memory).copy_(parameter)
        return self._views(self._buffer)

    def send(self, weights: Snapshot) -> list[Confirmation]:
        """Have the running replicas that hold less copy and load `weights`, which `take` gave last; the
        answers of those that hold it now. Pinned ones take only the run's last version."""
        info = self._info(weights.version)
        held = self._broadcast.roll_call(weights.version, pinned=info["last"])
        if any(version < weights.version for version in held.values()):
            self._broadcast.update(info, weights.version)
        self._lagging.sent()
        return self._broadcast.confirm(weights.version)

    def is_behind(self, version: int) -> bool:
        """Whether a replica with a heartbeat since the last sending holds less than `version`."""
        return self._lagging.behind(version)

    def _first(self) -> list[tuple[str, torch.Tensor]]:
        """As `take`, by way of a host copy: sizes are known once all tensors were whole."""
        assert self._by_way is not None
        tensors = self._by_way.take()
        self._places = placed((name, t.dtype, tuple(t.shape)) for name, t in tensors)
        self._buffer = SharedBuffer(size_of(self._places), self._engine.device)
        with self._buffer.filling(self._limit) as memory:
            for place, (_, tensor) in zip(self._places, tensors, strict=True):
                place.of(memory).copy_(tensor)
        # A tensor of the model's files may need several parameters, and these are whole one after the other.
        if not self._by_way.converts:
            self._by_way = None
        log.info("weights are shared", bytes=self._buffer.memory.nbytes, device=str(self._engine.device))
        return self._views(self._buffer)

    def _views(self, buffer: SharedBuffer) -> list[tuple[str, torch.Tensor]]:
        return [(place.name, place.of(buffer.memory)) for place in self._places]

    def _info(self, version: int) -> dict[str, Any]:
        """What a replica needs to copy the newest fill: numbers and text alone."""
        assert self._buffer is not None
        with on_own_stream(self._buffer.memory.device):
            digest = self._hash.digest([("weights", self._buffer.memory)])
        return {
            "version": version,
            "address": self._buffer.address.model_dump(),
            "names": [place.name for place in self._places],
            "dtypes": [str(place.dtype).removeprefix("torch.") for place in self._places],
            "shapes": [list(place.shape) for place in self._places],
            "digest": digest,
            "last": self._lagging.is_last(version),
        }
