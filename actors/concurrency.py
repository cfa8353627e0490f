"""Run coroutines concurrently and leave none running; batch calls made at the same moment."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


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


class BatchedCalls(Generic[T, R]):
    """Turns `send`, which takes several items, into a call for one item. Items requested in the same turn of
    the event loop share a call, in order, of a `size` up to `most` or of one item. If `send` fails, each item
    of the call raises its error. When all callers are gone, the call is cancelled."""

    def __init__(
        self,
        send: Callable[[Sequence[T]], Coroutine[None, None, Sequence[R]]],
        size: Callable[[T], int],
        most: int,
    ) -> None:
        self._send, self._size, self._most = send, size, most
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []

    async def __call__(self, item: T) -> R:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[R] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._ship)  # after every callback that is ready now
        self._waiting.append((item, answer))
        return await answer

    def _ship(self) -> None:
        waiting, self._waiting = self._waiting, []
        wanted = [(item, answer) for item, answer in waiting if not answer.done()]
        for batch in packed(wanted, lambda pair: self._size(pair[0]), self._most):
            answers = [answer for _, answer in batch]
            call = asyncio.get_running_loop().create_task(self._send([item for item, _ in batch]))
            call.add_done_callback(partial(_deliver, answers))
            for answer in answers:
                answer.add_done_callback(partial(_cancel_unwanted, call, answers))


def packed(items: Iterable[T], size: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """The items in order, in batches of total `size` at most `most`. A larger item is a batch of one."""
    batch, held = list[T](), 0
    for item in items:
        if batch and held + size(item) > most:
            yield batch
            batch, held = [], 0
        batch.append(item)
        held += size(item)
    if batch:
        yield batch


def _deliver(answers: Sequence[asyncio.Future[R]], call: asyncio.Task[Sequence[R]]) -> None:
    if call.cancelled():
        for answer in answers:
            answer.cancel()
        return
    error = call.exception()
    if error is None and len(call.result()) != len(answers):
        error = RuntimeError(f"a call for {len(answers)} items was answered for {len(call.result())}")
    for i, answer in enumerate(answers):
        if answer.done():  # the caller was cancelled
            continue
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(call.result()[i])


def _cancel_unwanted(
    call: asyncio.Task[Sequence[R]], answers: Iterable[asyncio.Future[R]], _: asyncio.Future[R]
) -> None:
    if all(answer.done() for answer in answers):
        call.cancel()
