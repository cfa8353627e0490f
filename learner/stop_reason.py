"""Why one start of the learner must end: a value in Redis, because all ranks see the same one.

A file in the run's folder would not do: NFS may show another machine an old folder for up to a minute. A rank
that misses the reason would wait in a collective for ranks that have returned.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import redis

from hora_rl.common.errors import HoraError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect, text_of


@dataclass(frozen=True, slots=True)
class StopReason:
    """The reason of the start with id `start` of `run`. Reasons of earlier starts are ignored."""

    url: str
    run: str
    start: str

    def write(self, reason: str) -> None:
        """Store `reason`, unless one is stored already. Without Redis the reason is lost, but `agree` then
        finds Redis down."""
        with suppress(HoraError, redis.exceptions.RedisError):
            connect(self.url).hsetnx(Keys(self.run).stopped, self.start, reason)

    def agree(self) -> str | None:
        """The reason found by any rank, on every rank; None to train. A collective."""
        from hora_rl.learner.totals import gathered  # torch, and the launcher needs none

        return next((reason for reason in gathered(self._read()) if reason is not None), None)

    def _read(self) -> str | None:
        """An unreachable Redis is a reason too: every attempt would wait as long."""
        try:
            client = connect(self.url, patient=True)
        except HoraError as error:
            return str(error)
        found = client.hget(Keys(self.run).stopped, self.start)
        return None if found is None else text_of(found)
