"""An evaluation pins one replica to a version of the weights, while the other replicas take every new
version.

    requested from version 40 ─► has 40 ─► pinned at 40: serves only this evaluation, takes no new weights
        ─► the lease ends ─► catches up to the newest weights, serves training

Over `gloo` and `nccl` an update needs all members of its group. A replica becomes a member when it answers
the learner's roll call. So no pin begins between a roll call and the end of its update.
"""

import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable

from hora_rl.common.errors import NoRoom, PinLost
from hora_rl.common.live import pin_lease
from hora_rl.common.live.redis import AsyncRedis
from hora_rl.common.live.telemetry import repeat
from hora_rl.common.types import Pinned, SamplingRequest

POLL_S = 0.5
PINNED = "pinned"
"""Key of the routing statistics: whether the replica is pinned."""


def only_on(replica: str) -> str:
    """The session of requests for one replica, given its id. If that replica is gone, another one refuses the
    request."""
    return f"only:{replica}"


def chosen(key: str, names: Iterable[str]) -> str:
    """The name for `key`, the same in every process and order of `names` (not empty). If names come or go, as
    few keys as possible move (rendezvous hashing)."""
    return max(names, key=lambda name: hashlib.blake2b(f"{key}:{name}".encode(), digest_size=8).digest())


class Pin:
    """The pin of replica `name`. `version` is the pinned version, else None. An update may take `limit_s`
    seconds."""

    def __init__(self, name: str, limit_s: float) -> None:
        self._name, self._limit_s = name, limit_s
        self._from: int | None = None
        self._promised_until = 0.0
        self._late_until = 0.0
        self.version: int | None = None

    def ask(self, asked: Pinned | None) -> None:
        """Apply the current lease. A pin ends with its lease, or when a lease asks for a newer version."""
        self._from = asked.version if asked is not None and asked.replica == self._name else None
        if self.version is not None and (self._from is None or self._from > self.version):
            self.version, self._late_until = None, time.monotonic() + self._limit_s

    def begin(self, held: int) -> None:
        """Between updates: pin the current version if a lease requests it and no update was promised."""
        if time.monotonic() >= self._promised_until and self._wants(held):
            self.version = held

    def promise(self) -> None:
        """Promise the learner to take part in an update that begins within the limit."""
        self._promised_until = time.monotonic() + self._limit_s

    def updated(self) -> None:
        """The promised update has ended."""
        self._promised_until = 0.0

    def installed(self, held: int) -> None:
        """Version `held` was loaded: pin it if a lease requests it. Even a pinned replica takes part in the
        broadcast of a run's last version."""
        self.version, self._late_until = held if self._wants(held) else None, 0.0

    def _wants(self, held: int) -> bool:
        return self._from is not None and held >= self._from

    @property
    def released(self) -> bool:
        """Whether a pin has ended and newer weights may still arrive in time."""
        return self.version is None and time.monotonic() < self._late_until

    def check(self, request: SamplingRequest) -> None:
        """Raise NoRoom for a training request while pinned, and PinLost for a request that expects another
        pin."""
        if request.pinned is not None:
            if (request.pinned.replica, request.pinned.version) != (self._name, self.version):
                raise PinLost(f"{self._name} is not pinned at version {request.pinned.version}")
        elif self.version is not None:
            raise NoRoom(f"{self._name} is pinned at version {self.version} for an evaluation")


async def keep_pin(note: Callable[[Pinned | None], Awaitable[None]], client: AsyncRedis, run: str) -> None:
    """Poll the current lease and pass it to `note`. Without Redis nothing changes: no one trains then, and
    Redis ends the lease."""

    async def look() -> None:
        await note(await pin_lease.asked(client, run))

    await repeat(POLL_S, look, "cannot read the lease of an evaluation")
