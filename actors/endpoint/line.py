"""A queue of requests that wait for a place on a generator."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from hora_rl.common.errors import NoRoom

LIMIT_S = 30.0
MOST = 64
AGAIN_S = 1.0
T = TypeVar("T")


class Line:
    """The first request in the queue polls the replicas; the rest wait at no cost. Without a queue, refused
    clients would retry at once and slow the run."""

    def __init__(self, limit_s: float = LIMIT_S, most: int = MOST, again_s: float = AGAIN_S) -> None:
        self._limit_s, self._most, self._again_s = limit_s, most, again_s
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def served(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Call `ask` until it does not raise NoRoom, and return its result. Raises NoRoom if `most` requests
        wait already, and after `limit_s` seconds."""
        if self._waiting >= self._most:
            raise NoRoom(f"{self._waiting} requests wait for a generator")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._limit_s), self._turn:
                while True:
                    try:
                        return await ask()
                    except NoRoom:
                        await asyncio.sleep(self._again_s)
        except TimeoutError:
            raise NoRoom(f"no generator had room for {self._limit_s:.0f} s") from None
        finally:
            self._waiting -= 1
