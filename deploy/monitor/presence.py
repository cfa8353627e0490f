"""Whether somebody watches a run, so that `hora run` shows its end to those who do and waits for nobody else.

Reading a run writes nothing: a view is present by a connection to the run's Redis that has a name.
"""

from __future__ import annotations

import redis

from hora_rl.common.live.redis import Redis, connect


class Presence:
    """Of one view; not for several threads."""

    def __init__(self, url: str, run: str) -> None:
        self._url, self._name = url, _name(run)
        self._client: Redis | None = None

    def update(self, watching: bool) -> None:
        """Call it at every look. Raises RunError or a RedisError while Redis is away."""
        if not watching:
            self.end()
            return
        if self._client is None:
            self._client = connect(self._url, retries=0)
        self._client.client_setname(self._name)  # again after a lost connection

    def end(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None


def is_watched(client: Redis, run: str) -> bool:
    """Whether a view of `run` is present; true where this Redis does not say."""
    try:
        present = client.client_list()
    except redis.exceptions.ResponseError:  # not allowed to this user
        return True
    return any(connection["name"] == _name(run) for connection in present)


def _name(run: str) -> str:
    return f"hora-view-of-{run}"
