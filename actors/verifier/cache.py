"""A cache of verdicts that also shares pending ones. Answers of a group often repeat."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Verdict = TypeVar("Verdict")
SIZE = 100_000
"""Cached verdicts. A trained model repeats few different answers."""


class VerdictCache(Generic[Verdict]):
    """LRU cache of SIZE verdicts, keyed by a digest of `repr(key)`. Use from one event loop."""

    def __init__(self) -> None:
        self._found: OrderedDict[bytes, Verdict] = OrderedDict()
        self._pending: dict[bytes, asyncio.Task[Verdict]] = {}

    def __contains__(self, key: object) -> bool:
        """Whether the verdict of `key` is known or pending."""
        return (digest := _digest(key)) in self._found or digest in self._pending

    async def of(self, key: object, judge: Callable[[], Awaitable[Verdict]]) -> Verdict:
        """The verdict of `key`, from the cache or from `judge`. Errors of `judge` are raised and not
        cached."""
        digest = _digest(key)
        if digest in self._found:
            self._found.move_to_end(digest)
            return self._found[digest]
        if digest not in self._pending:
            task = asyncio.create_task(self._judge(digest, judge))
            self._pending[digest] = task
            task.add_done_callback(lambda _: self._pending.pop(digest, None))
        # Shielded: a cancelled caller must not cancel a verdict that other callers wait for.
        return await asyncio.shield(self._pending[digest])

    def cancel(self) -> None:
        """Cancel all pending verdicts."""
        for task in self._pending.values():
            task.cancel()

    async def _judge(self, digest: bytes, judge: Callable[[], Awaitable[Verdict]]) -> Verdict:
        verdict = self._found[digest] = await judge()
        if len(self._found) > SIZE:
            self._found.popitem(last=False)
        return verdict


def _digest(key: object) -> bytes:
    return hashlib.blake2b(repr(key).encode(errors="replace"), digest_size=16).digest()
