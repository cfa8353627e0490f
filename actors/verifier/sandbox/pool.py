"""A pool of sandboxes for one event loop. Each call runs in a thread, with exclusive use of one sandbox."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

from hora_rl.actors.verifier.sandbox.sandbox import SandboxLost
from hora_rl.common.errors import VerifierUnavailable


class Closed(Protocol):
    def close(self) -> None: ...


Box = TypeVar("Box", bound=Closed)
T = TypeVar("T")


class SandboxPool(Generic[Box]):
    """Up to `most` boxes, created on demand. `close()` ends all, even busy ones."""

    def __init__(self, make: Callable[[], Box], most: int) -> None:
        self._make = make
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="boxes")
        self._all: list[Box] = []
        self._idle: list[Box] = []
        self._places = asyncio.Semaphore(most)

    async def use(self, call: Callable[[Box], T]) -> T:
        """The result of `call` on a free box. Raises the errors of `call`, and VerifierUnavailable if the
        sandbox failed: retry."""
        async with self._places:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, call)

    def close(self) -> None:
        for box in self._all:
            box.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _run(self, call: Callable[[Box], T]) -> T:
        """Runs in a thread. There are never more threads than boxes."""
        box = self._free()
        try:
            return call(box)
        except SandboxLost as error:
            self._all.remove(box)
            box.close()
            raise VerifierUnavailable(f"an answer was not judged: {error}") from error
        finally:
            if box in self._all:
                self._idle.append(box)

    def _free(self) -> Box:
        try:
            return self._idle.pop()
        except IndexError:  # not checked beforehand: another thread may take the last box
            box = self._make()
            self._all.append(box)
            return box
