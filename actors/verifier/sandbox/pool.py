"""A pool of sandboxes and their verdicts, for one event loop. Each call runs in a thread, with exclusive use
of one sandbox. Answers of a group often repeat, so verdicts are cached, and pending ones shared."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

from hora_rl.actors.verifier.sandbox.sandbox import SandboxLost
from hora_rl.common.errors import VerifierUnavailable


class Closed(Protocol):
    def close(self) -> None: ...


Box = TypeVar("Box", bound=Closed)
T = TypeVar("T")
SIZE = 100_000
"""Cached verdicts. A trained model repeats few different answers."""


class VerdictCache:
    """LRU cache of SIZE verdicts, keyed by a digest of `repr(key)`. Use from one event loop."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, float] = OrderedDict()
        self._pending: dict[bytes, asyncio.Task[float]] = {}

    def __contains__(self, key: object) -> bool:
        """Whether the verdict of `key` is known or pending."""
        return (digest := _digest(key)) in self._known or digest in self._pending

    async def of(self, key: object, judge: Callable[[], Awaitable[float]]) -> float:
        """The verdict of `key`, from the cache or from `judge`. Errors of `judge` are not cached."""
        digest = _digest(key)
        if digest in self._known:
            self._known.move_to_end(digest)
            return self._known[digest]
        if digest not in self._pending:
            task = asyncio.create_task(self._judge(digest, judge))
            self._pending[digest] = task
            task.add_done_callback(lambda _: self._pending.pop(digest, None))
        # Shielded: a cancelled caller must not cancel a verdict that other callers wait for.
        return await asyncio.shield(self._pending[digest])

    def cancel(self) -> None:
        for task in self._pending.values():
            task.cancel()

    async def _judge(self, digest: bytes, judge: Callable[[], Awaitable[float]]) -> float:
        verdict = self._known[digest] = await judge()
        if len(self._known) > SIZE:
            self._known.popitem(last=False)
        return verdict


def _digest(key: object) -> bytes:
    return hashlib.blake2b(repr(key).encode(errors="replace"), digest_size=16).digest()


class SandboxPool(Generic[Box]):
    """Up to `most` boxes, created on demand. `close()` ends all, even busy ones."""

    def __init__(self, make: Callable[[], Box], most: int) -> None:
        self._make = make
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="boxes")
        self._all: list[Box] = []
        self._idle: list[Box] = []
        self._places = asyncio.Semaphore(most)
        self.verdicts = VerdictCache()

    async def use(self, call: Callable[[Box], T]) -> T:
        """The result of `call` on a free box, or its error; VerifierUnavailable if the sandbox failed."""
        async with self._places:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, call)

    def close(self) -> None:
        self.verdicts.cancel()
        for box in self._all:
            box.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _run(self, call: Callable[[Box], T]) -> T:
        """Runs in a thread. There are never more threads than boxes."""
        try:
            box = self._idle.pop()
        except IndexError:  # not checked beforehand: another thread may take the last box
            box = self._make()
            self._all.append(box)
        try:
            return call(box)
        except SandboxLost as error:
            self._all.remove(box)
            box.close()
            raise VerifierUnavailable(f"an answer was not judged: {error}") from error
        finally:
            if box in self._all:
                self._idle.append(box)
