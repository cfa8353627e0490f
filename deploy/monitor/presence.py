"""Whether a view watches a run: `hora run` keeps its final state up only for viewers.

Views do not write to Redis. A watching view holds a named connection to the run's Redis.
"""

from __future__ import annotations

import redis

from hora_rl.common.live.redis import Redis, connect


class Presence:
    """Presence of one view. Not thread-safe."""

    def __init__(self, url: str, run: str) -> None:
        self._url, self._name = url, _name(run)
        self._client: Redis | None = None

    def update(self, watching: bool) -> None:
        """Call at every snapshot. Raises RunError or a RedisError if Redis is down."""
        if not watching:
            self.end()
            return
        if self._client is None:
            self._client = connect(self._url, retries=0)
        self._client.client_setname(self._name)  # repeated in case of a new connection

    def end(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None


def is_watched(client: Redis, run: str) -> bool:
    """Whether a view of `run` is present. True if Redis refuses to list clients."""
    try:
        present = client.client_list()
    except redis.exceptions.ResponseError:  # CLIENT LIST is not allowed
        return True
    return any(connection["name"] == _name(run) for connection in present)


def _name(run: str) -> str:
    return f"hora-view-of-{run}"
