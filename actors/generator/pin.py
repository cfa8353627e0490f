"""A replica that an evaluation keeps at one version of the weights, while the other replicas take every new
one.

    asked from version 40 ─► holds 40 ─► pinned at 40: serves this evaluation alone, takes no new weights
        ─► the lease ends ─► takes the newest weights as a replica that is late, serves training

Over `gloo` and `nccl` an update needs every member of its group, and a replica is a member once it has
answered the learner's roll call. So between a roll call and the end of its update no pin begins.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import redis
import structlog

from hora_rl.common.errors import NoRoom, PinLost
from hora_rl.common.live import pin_lease
from hora_rl.common.live.redis import AsyncRedis
from hora_rl.common.types import Pinned, SamplingRequest

log = structlog.get_logger(__name__)
POLL_S = 0.5
PINNED = "pinned"
"""Name under which a replica tells routers whether it is pinned."""


def only_on(replica: str) -> str:
    """The session of requests for the replica with this id alone. Where it is gone, they reach another one,
    which refuses them."""
    return f"only:{replica}"


class Pin:
    """Of the replica `name`. `version` is the one that it is pinned at, None while it is not. An update, or
    what remains of one, has `limit_s` seconds."""

    def __init__(self, name: str, limit_s: float) -> None:
        self._name, self._limit_s = name, limit_s
        self._from: int | None = None
        self._promised_until = 0.0
        self._late_until = 0.0
        self.version: int | None = None

    def ask(self, asked: Pinned | None) -> None:
        """Note the lease in force. A pin ends with its lease, or with a lease from a newer version."""
        self._from = asked.version if asked is not None and asked.replica == self._name else None
        if self.version is not None and (self._from is None or self._from > self.version):
            self.version, self._late_until = None, time.monotonic() + self._limit_s

    def begin(self, held: int) -> None:
        """Between updates: pin the held version, if that is asked for and no update was promised."""
        if time.monotonic() >= self._promised_until and self._wants(held):
            self.version = held

    def promise(self) -> None:
        """The learner counts on this replica for an update, which begins within the limit."""
        self._promised_until = time.monotonic() + self._limit_s

    def updated(self) -> None:
        """The update that was promised has ended."""
        self._promised_until = 0.0

    def installed(self, held: int) -> None:
        """A version was loaded: pin it, if that is asked for. Also a pinned replica takes part in the
        broadcast of a run's last version."""
        self.version, self._late_until = held if self._wants(held) else None, 0.0

    def _wants(self, held: int) -> bool:
        return self._from is not None and held >= self._from

    @property
    def released(self) -> bool:
        """Whether a pin has ended and the newer weights have not come, within the limit for them."""
        return self.version is None and time.monotonic() < self._late_until

    def check(self, request: SamplingRequest) -> None:
        """Raise NoRoom for a request of training while this replica is pinned, and PinLost for one of an
        evaluation that counts on another pin."""
        if request.pinned is not None:
            if (request.pinned.replica, request.pinned.version) != (self._name, self.version):
                raise PinLost(f"{self._name} is not pinned at version {request.pinned.version}")
        elif self.version is not None:
            raise NoRoom(f"{self._name} is pinned at version {self.version} for an evaluation")


async def keep_pin(note: Callable[[Pinned | None], Awaitable[None]], client: AsyncRedis, run: str) -> None:
    """Call `note` with the lease in force, again and again. While Redis is away nothing changes: nobody
    trains then, and its clock ends the lease."""
    while True:
        try:
            await note(await pin_lease.asked(client, run))
        except redis.exceptions.RedisError as error:
            log.warning("cannot read the lease of an evaluation", error=str(error)[:300])
        await asyncio.sleep(POLL_S)
