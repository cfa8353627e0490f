"""A group of the learner's rank 0 and the running replicas, over which every version is broadcast (`gloo`,
`nccl`).

    roll call ─► group of those who answered ─► broadcast ─► …
        ─► a replica came, left or died ─► roll call ─► group anew

What is sent is a copy in the learner's host memory: the next step need not wait for it, a broadcast that
broke off is repeated, and a replica that came between two versions is sent the newest again.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import ray
import redis
import structlog
import torch
from vllm.distributed.weight_transfer.base import ParamMeta, TrainerInitInfo, WeightSource
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

from common.config import Config
from common.keys import Keys
from common.telemetry import beats
from learner.weights.broadcast import BroadcastClient
from learner.weights.gloo_transport import GlooTrainerInitInfo

log = structlog.get_logger(__name__)
ATTEMPTS = 3
# No replica decodes while it joins, and one that died after the roll call lets the others wait this long.
JOIN_S = 30.0
RESEND_S = 5.0  # at most so often
LAG_S = 1.0  # of clocks of different machines


class Snapshot(WeightSource):
    """One version in host memory; iterating puts each tensor on `device`."""

    def __init__(self, version: int, tensors: list[tuple[str, torch.Tensor]], device: torch.device) -> None:
        self.version, self.device = version, device
        self._tensors = tensors

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self._tensors]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, tensor.to(self.device)) for name, tensor in self._tensors)


class TransferGroup:
    """Used on rank 0 of the learner alone."""

    def __init__(self, config: Config, client: redis.Redis, broadcast: BroadcastClient) -> None:
        self._config, self._broadcast = config, broadcast
        self._redis = client
        self._parts = Keys(config.run.name).parts
        self._limit = config.weights.update_limit_s
        self._nccl = config.weights.transport == "nccl"
        self._engine: Any = None
        self._sent_at = 0.0

    def send(self, weights: Snapshot) -> None:
        """Broadcast to the running replicas that hold less; one that comes later is sent it then. A group
        that loses a member on the way is formed anew without it; over NCCL nobody can wait for a peer that
        died, and the watchdog ends this process."""
        self._broadcast.version = weights.version
        for attempt in range(1, ATTEMPTS + 1):
            try:
                members = self._lacking(weights.version)
                with self._over_nccl(weights) if self._nccl else nullcontext():
                    self._send(weights, members)
                break
            except Exception as error:  # Gloo, NCCL, Ray or a replica; the learner continues
                self._leave()
                log.warning(
                    "a broadcast broke off", version=weights.version, attempt=attempt, error=str(error)[:300]
                )
        # Replicas that still hold less are sent it again while the learner waits for their rollouts.
        self._sent_at = time.time()

    def is_behind(self, version: int) -> bool:
        """Whether a replica that spoke since the last broadcast holds less than `version`."""
        if time.time() < self._sent_at + RESEND_S:
            return False
        replicas = beats(self._redis.hgetall(self._parts), "generator")
        return any(r["version"] < version for r in replicas if r["seen"] > self._sent_at + LAG_S)

    @contextmanager
    def _over_nccl(self, weights: Snapshot) -> Iterator[None]:
        """On a stream of its own, so that the step computes meanwhile. The learner's collectives may run
        beside the group's: no rank of the learner waits for a replica, and no replica for the learner's other
        ranks."""
        aside = torch.cuda.stream(torch.cuda.Stream(weights.device))
        with _watchdog(self._limit, f"publishing version {weights.version}"), aside:
            yield

    def _lacking(self, version: int) -> tuple[str, ...]:
        """The running replicas that hold less: a learner that repeats steps after a crash must not take
        others back."""
        held = self._broadcast.roll_call()
        return tuple(sorted(name for name, of in held.items() if of < version))

    def _send(self, weights: Snapshot, members: tuple[str, ...]) -> None:
        if not members:
            return
        if self._engine is None or members != self._broadcast.members:
            self._leave()
            self._form(members, weights)
        self._engine.source = weights
        self._engine.send_weights()
        self._engine.source = None  # the next copy of the model is made while this one may go

    def _form(self, members: tuple[str, ...], weights: Snapshot) -> None:
        self._broadcast.members = members
        world = 1 + len(members) * self._config.generator.tensor_parallel
        self._engine = WeightTransferTrainerFactory.trainer_init(
            self._place(world), client=self._broadcast, source=weights
        )
        log.info("transfer group formed", replicas=len(members), world=world)

    def _leave(self) -> None:
        if self._engine is not None:
            self._engine.shutdown()
            self._engine = None

    def _place(self, world: int) -> TrainerInitInfo:
        address = ray.util.get_node_ip_address()
        if not self._nccl:
            # Each wait of the group ends before the replicas' limit does, which is for those that stand
            # still.
            return GlooTrainerInitInfo(address, world, min(JOIN_S, self._limit / 2), self._limit / 2, rank=0)
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        with socket.socket() as probe:
            probe.bind(("", 0))
            port = int(probe.getsockname()[1])
        return NCCLTrainerInitInfo(address, port, world, rank=0)


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
