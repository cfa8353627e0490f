"""A cache of verdicts that also shares pending ones. Answers of a group often repeat."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Verdict = TypeVar("Verdict")


class Remembered(Generic[Key, Verdict]):
    """The verdicts of the `size` most recently used keys. Use from one event loop."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._found: OrderedDict[Key, Verdict] = OrderedDict()
        self._pending: dict[Key, asyncio.Task[Verdict]] = {}

    def __contains__(self, key: Key) -> bool:
        """Whether the verdict of `key` is known or pending."""
        return key in self._found or key in self._pending

    async def of(self, key: Key, judge: Callable[[], Awaitable[Verdict]]) -> Verdict:
        """The verdict of `key`, from the cache or from `judge`. Errors of `judge` are raised and not
        cached."""
        if key in self._found:
            self._found.move_to_end(key)
            return self._found[key]
        if key not in self._pending:
            task = asyncio.create_task(self._judge(key, judge))
            self._pending[key] = task
            task.add_done_callback(lambda _: self._pending.pop(key, None))
        # Shielded: a cancelled caller must not cancel a verdict that other callers wait for.
        return await asyncio.shield(self._pending[key])

    def cancel(self) -> None:
        """Cancel all pending verdicts."""
        for task in self._pending.values():
            task.cancel()

    async def _judge(self, key: Key, judge: Callable[[], Awaitable[Verdict]]) -> Verdict:
        verdict = self._found[key] = await judge()
        if len(self._found) > self._size:
            self._found.popitem(last=False)
        return verdict
