"""Run coroutines concurrently and leave none running."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import TypeVar

T = TypeVar("T")


async def all_of(work: Iterable[Coroutine[None, None, T]]) -> list[T]:
    """Results in order. If one fails, cancel the rest, wait for them, then raise its error."""
    tasks = [asyncio.create_task(w) for w in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancel(tasks)


async def cancel(tasks: Iterable[asyncio.Task[object]]) -> None:
    """Cancel unfinished tasks and wait for all. Errors of these tasks are dropped."""
    every = list(tasks)
    for task in every:
        task.cancel()
    await asyncio.gather(*every, return_exceptions=True)
