"""The group of the learner's rank 0 and the running replicas, over which every version is broadcast (`gloo`,
`nccl`).

    roll call ─► group of the replicas that answered ─► broadcast ─► …
        ─► a replica came, left or died ─► roll call ─► new group

The broadcast reads a copy in the learner's host memory. So the next step need not wait, a broken broadcast
can be repeated, and a replica that starts between two versions receives the newest again.
"""

from __future__ import annotations

import faulthandler
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import ray
import redis
import structlog
import torch
from ray.exceptions import RayError
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

from hora_rl.common.config import Config
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.telemetry import beats
from hora_rl.learner.weights.broadcast import BroadcastClient, Confirmation
from hora_rl.learner.weights.group_engines import ENGINES, Meeting
from hora_rl.learner.weights.host_copy import Snapshot

log = structlog.get_logger(__name__)
ATTEMPTS = 3
RESEND_S = 5.0  # shortest time between two sendings of one version
LAG_S = 1.0  # difference of clocks of two machines
# If a replica dies after the roll call, the rest wait this long without decoding.
JOIN_S = 30.0


class _Source(WeightSource):
    """`weights` as vLLM's trainer reads them."""

    def __init__(self, weights: Snapshot) -> None:
        self._weights = weights

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(*of) for of in self._weights.shapes()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self._weights)


@dataclass(slots=True)
class _Update:
    """One version on its way to one group: vLLM's weight-sync client, whose four calls carry both.
    `confirmed` are the replicas that hold the version afterwards."""

    broadcast: BroadcastClient
    members: tuple[str, ...]
    group: str
    version: int
    confirmed: list[Confirmation] = field(default_factory=list)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """vLLM sends one payload with rank offset 1; each member adds its index."""
        self.broadcast.join(init_info, self.members, self.group)

    def start_weight_update(self) -> None:
        """Nothing to do: a replica opens its model when the weights have arrived."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Members receive and load by themselves, so a started update needs no further call."""
        self.broadcast.update(update_info, self.version, self.group)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.confirmed = self.broadcast.confirm(self.version)


class TransferGroup:
    """Used only on rank 0 of the learner. `clock` gives seconds since the epoch."""

    def __init__(
        self,
        config: Config,
        client: redis.Redis,
        broadcast: BroadcastClient,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config, self._broadcast = config, broadcast
        self._redis, self._clock = client, clock
        self._sent_at = 0.0
        self._limit = config.weights.update_limit_s
        self._nccl = config.weights.transport == "nccl"
        self._engine: Any = None
        self._members: tuple[str, ...] = ()
        self._name = ""

    def send(self, weights: Snapshot) -> list[Confirmation]:
        """Broadcast to the running replicas with an older version; returns the answers of those that now hold
        this one. If a member dies, the group is formed again without that member."""
        confirmed: list[Confirmation] = []
        for attempt in range(1, ATTEMPTS + 1):
            try:
                members = self._lacking(weights.version)
                with self._over_nccl(weights) if self._nccl else nullcontext():
                    confirmed = self._send(weights, members)
                break
            except (RuntimeError, OSError, RayError) as error:  # Gloo and NCCL raise RuntimeError
                self._leave()
                log.warning(
                    "a broadcast broke off", version=weights.version, attempt=attempt, error=str(error)[:300]
                )
        # Replicas still behind receive this version again while the learner waits for their rollouts.
        self._sent_at = self._clock()
        return confirmed

    def is_behind(self, version: int) -> bool:
        """Whether a replica with a heartbeat since the last broadcast holds less than `version`."""
        if self._clock() < self._sent_at + RESEND_S:
            return False
        replicas = beats(self._redis.hgetall(Keys(self._config.run.name).parts), "generator")
        due = [r for r in replicas if self._is_last(version) or "pinned" not in r]
        return any(r["version"] < version for r in due if r["seen"] > self._sent_at + LAG_S)

    def _is_last(self, version: int) -> bool:
        """Whether no version follows. The last version ends every pin, because no later one could."""
        return version >= self._config.learner.steps

    @contextmanager
    def _over_nccl(self, weights: Snapshot) -> Iterator[None]:
        """Send on a separate CUDA stream, so the step computes meanwhile. The learner's and the group's
        collectives may overlap: no learner rank waits for a replica, and no replica waits for the other
        learner ranks."""
        # Every wait of the group has a limit. If the driver does not return, this rank exits and restarts
        # from its checkpoint.
        faulthandler.dump_traceback_later(2 * self._limit, exit=True, file=2)
        try:
            with torch.cuda.stream(torch.cuda.Stream(weights.device)):
                yield
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _lacking(self, version: int) -> tuple[str, ...]:
        """The running replicas that hold an older version and may be updated. A learner that repeats steps
        after a crash must not take a replica back to an older version."""
        held = self._broadcast.roll_call(version, pinned=self._is_last(version))
        return tuple(sorted(name for name, of in held.items() if of < version))

    def _send(self, weights: Snapshot, members: tuple[str, ...]) -> list[Confirmation]:
        if not members:
            return []
        forming = self._engine is None or members != self._members
        if forming:
            self._leave()
            self._members, self._name = members, uuid.uuid4().hex
        update = _Update(self._broadcast, members, self._name, weights.version)
        if forming:
            self._form(update, weights)
        self._engine.client, self._engine.source = update, _Source(weights)
        self._engine.send_weights()
        self._engine.source = None  # free this copy of the model: the next one is made meanwhile
        return update.confirmed

    def _form(self, update: _Update, weights: Snapshot) -> None:
        world = 1 + len(update.members) * self._config.generator.tensor_parallel
        # Replicas wait twice, to meet and to connect, and that ends before their own limit, which ends a
        # hung replica.
        address, join_s = ray.util.get_node_ip_address(), min(JOIN_S, self._limit / 4)
        meeting = Meeting(address, world, join_s, self._limit / 2, rank=0)
        kind = ENGINES[self._config.weights.transport]
        self._engine = kind.trainer_init(meeting, client=update, source=_Source(weights))
        log.info("transfer group formed", replicas=len(update.members), world=world)

    def _leave(self) -> None:
        if self._engine is not None:
            self._engine.shutdown()
            self._engine = None
