"""Leases in Redis: one coordinator works on a shard at a time. Leases of a dead coordinator expire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hora_rl.actors.concurrency import cancel
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import AsyncRedis

RENEW = (
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end "
    "return 0"
)
RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class Leases:
    """Leases of `owner` that last `seconds` unless renewed. `redis` is an asyncio client."""

    def __init__(self, redis: AsyncRedis, run: str, owner: str, seconds: float) -> None:
        self._redis = redis
        self._prefix = Keys(run).leases
        self._owner = owner
        self._seconds = seconds
        self._renew = redis.register_script(RENEW)
        self._release = redis.register_script(RELEASE)

    async def acquire(self, name: str) -> bool:
        """Take a free lease. Returns False if the lease is taken."""
        return bool(
            await self._redis.set(self._key(name), self._owner, nx=True, px=int(self._seconds * 1000))
        )

    async def release(self, name: str) -> None:
        await self._release(keys=[self._key(name)], args=[self._owner])

    @asynccontextmanager
    async def held(self, name: str) -> AsyncIterator[None]:
        """Renew an acquired lease while the block runs, then release it.

        Losing a lease (after a long stall of this process) is harmless: if a shard has two owners, the first
        plan and the first push of each group count.
        """
        over = asyncio.Event()
        renewal = asyncio.create_task(self._keep(name, over))
        try:
            yield
        finally:
            over.set()  # A cancellation that arrives while redis-py reads a reply can be lost in redis-py.
            await cancel([renewal])
            await self.release(name)

    async def _keep(self, name: str, over: asyncio.Event) -> None:
        while not over.is_set():
            await asyncio.sleep(self._seconds / 3)
            await self._renew(keys=[self._key(name)], args=[self._owner, int(self._seconds * 1000)])

    def _key(self, name: str) -> str:
        return f"{self._prefix}:{name}"
