"""Leases in Redis: one coordinator works on a shard at a time. Leases of a dead coordinator expire."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from redis.asyncio.lock import Lock
from redis.exceptions import LockError

from hora_rl.actors.concurrency import cancel
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import AsyncRedis


class Leases:
    """Leases of `owner` that last `seconds` unless renewed. `redis` is an asyncio client."""

    def __init__(self, redis: AsyncRedis, run: str, owner: str, seconds: float) -> None:
        self._redis, self._owner, self._seconds = redis, owner, seconds
        self._prefix = Keys(run).leases
        self._locks: dict[str, Lock] = {}

    async def acquire(self, name: str) -> bool:
        """Take a free lease. Returns False if the lease is taken."""
        lock = self._redis.lock(f"{self._prefix}:{name}", timeout=self._seconds, thread_local=False)
        if not await lock.acquire(blocking=False, token=self._owner):
            return False
        self._locks[name] = lock
        return True

    async def release(self, name: str) -> None:
        """End an acquired lease, unless another owner has it by now."""
        with suppress(LockError):
            await self._locks.pop(name).release()

    @asynccontextmanager
    async def held(self, name: str) -> AsyncIterator[None]:
        """Renew an acquired lease while the block runs, then release it.

        Losing a lease (after a long stall of this process) is harmless: if a shard has two owners, the first
        plan and the first push of each group count.
        """
        over = asyncio.Event()
        renewal = asyncio.create_task(self._keep(self._locks[name], over))
        try:
            yield
        finally:
            over.set()  # A cancellation that arrives while redis-py reads a reply can be lost in redis-py.
            await cancel([renewal])
            await self.release(name)

    async def _keep(self, lock: Lock, over: asyncio.Event) -> None:
        while not over.is_set():
            await asyncio.sleep(self._seconds / 3)
            with suppress(LockError):  # lost
                await lock.reacquire()
