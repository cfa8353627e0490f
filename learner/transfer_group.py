"""A group of the learner and the running replicas, over which every version is broadcast (`gloo`, `nccl`).

    roll call ─► group of those who answered ─► broadcast ─► … ─► a replica came or left ─► roll call ─► group anew

A replica that comes between two versions holds none of them: while the learner waits for rollouts it sends the newest again.
A peer that dies inside a collective cannot be waited for: the error, or the watchdog, ends the process, and the learner
restarts from its checkpoint.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from typing import Any

import ray
import redis
import structlog
from vllm.distributed.weight_transfer.base import TrainerInitInfo, WeightSource
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

from common.config import Config
from common.errors import RunError
from common.keys import Keys
from learner.broadcast import BroadcastClient
from learner.gloo_transport import GlooTrainerInitInfo

log = structlog.get_logger(__name__)
RESEND_S = 5.0  # at most so often
LAG_S = 1.0  # of clocks of different machines


class TransferGroup:
    """Used on every rank of the learner, for gathering the weights is a collective; rank 0 alone is in the group."""

    def __init__(
        self, config: Config, client: redis.Redis, broadcast: BroadcastClient, source: WeightSource, rank: int
    ) -> None:
        self._config, self._rank = config, rank
        self._redis: Any = client
        self._keys = Keys(config.run.name)
        self._broadcast, self._source = broadcast, source
        self._limit = config.weights.update_limit_s
        self._engine: Any = None
        self._sent_at = 0.0
        self._resent = self._asked_to_resend()
        self.version = -1  # sent last

    def send(self, version: int) -> None:
        """Broadcast the weights as they are, as `version`, to all replicas that run now."""
        with _watchdog(self._limit, f"publishing version {version}"):
            self._form()
            self._broadcast.version = version
            self._engine.send_weights()
        self.version, self._sent_at = version, time.time()

    def wants_again(self) -> bool:
        """Whether the version sent last is to be sent again, because a replica holds less. Asked on every rank while it waits
        for groups; rank 0 decides and counts, the others follow its count."""
        if self._rank == 0 and self._behind():
            self._redis.hincrby(self._keys.state, "resent", 1)
        if self._asked_to_resend() == self._resent:
            return False
        self._resent += 1
        return True

    def _behind(self) -> bool:
        if self.version < 0 or time.time() < self._sent_at + RESEND_S:
            return False
        parts = self._redis.hgetall(self._keys.parts).items()
        replicas = [json.loads(text) for name, text in parts if name.startswith(b"generator/")]
        return any(r["version"] < self.version for r in replicas if r["seen"] > self._sent_at + LAG_S)

    def _asked_to_resend(self) -> int:
        return int(self._redis.hget(self._keys.state, "resent") or 0)

    def _form(self) -> None:
        """Leave the group as it is when the replicas are the same."""
        members = self._members() if self._rank == 0 else ()
        if self._engine is not None and members == self._broadcast.members:
            return
        if self._engine is not None:
            self._engine.shutdown()
        self._broadcast.members = members
        world = 1 + len(members) * self._config.generator.tensor_parallel
        self._engine = WeightTransferTrainerFactory.trainer_init(
            self._place(world), client=self._broadcast, source=self._source
        )
        log.info("transfer group formed", replicas=len(members), world=world)

    def _members(self) -> tuple[str, ...]:
        """The running replicas. Raises RunError when none comes in time."""
        deadline = time.monotonic() + self._limit / 2
        while not (members := self._broadcast.roll_call()):
            if time.monotonic() > deadline:
                raise RunError("no generator replica is running: `serve status` says why")
            time.sleep(1.0)
        return members

    def _place(self, world: int) -> TrainerInitInfo:
        address = ray.util.get_node_ip_address()
        if self._config.weights.transport == "gloo":
            return GlooTrainerInitInfo(address, world, self._limit, rank=self._rank)
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        with socket.socket() as probe:
            probe.bind(("", 0))
            port = int(probe.getsockname()[1])
        return NCCLTrainerInitInfo(address, port, world, rank=self._rank)


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
