"""One reader of a run per process: one snapshot per second, shared by all clients.

A failed snapshot (Redis down, no such run, wrong password) is also an event. Clients show its message with
the last state.
"""

import asyncio
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import redis
import structlog

from hora_rl.common.errors import HoraError
from hora_rl.common.live.redis import Redis, connect, hidden
from hora_rl.deploy.monitor.history import History
from hora_rl.deploy.monitor.reading import read_run
from hora_rl.deploy.monitor.run_state import RunState

log = structlog.get_logger(__name__)
PERIOD_S = 1.0
COLUMNS_S = 2.0
Observer = Callable[[RunState], None]
Read = Callable[[Redis, str], RunState]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Event:
    """Result of one attempt to read the run: a state, or the reason of the failure. `number` counts
    attempts."""

    number: int
    state: RunState | None
    problem: str | None

    def to_json(self) -> str:
        state = None if self.state is None else self.state.to_dict()
        return json.dumps({"state": state, "problem": self.problem}, separators=(",", ":"))


class Feed:
    """Reads the run on a running event loop after `start`. `observer` is called with every state."""

    def __init__(
        self, redis_url: str, run: str, observer: Observer | None = None, read: Read = read_run
    ) -> None:
        self.run = run
        self._url, self._observer, self._state = redis_url, observer, read
        self._client: Redis | None = None
        self.streams = 0
        """Clients of the event stream."""
        self._history, self._building = History(run), asyncio.Lock()
        self._columns, self._columns_at = b"", -COLUMNS_S
        self.event = Event(0, None, "the first snapshot is under way")
        self.text = self.event.to_json()
        """The newest event, and its JSON for all clients."""
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    async def history(self) -> bytes:
        """JSON columns for charts, read on request at most every COLUMNS_S seconds. Raises HoraError if
        Redis is down or has no such run."""
        async with self._building:
            if time.monotonic() - self._columns_at >= COLUMNS_S:
                self._columns = await self.call(self._history.columns)
                self._columns_at = time.monotonic()
            return self._columns

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def after(self, number: int) -> Event:
        """Wait for an event after `number`. Returns the newest event."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.event.number > number)
            return self.event

    async def call(self, work: Callable[[Redis], T]) -> T:
        """Run `work(client)` with the feed's blocking client in a thread. Raises HoraError if Redis is
        down."""
        return await asyncio.to_thread(self._guarded, work)

    async def _work(self) -> None:
        while True:
            number = self.event.number + 1
            # A view must survive any content of a run, so errors are values here.
            [result] = await asyncio.gather(self._look(), return_exceptions=True)
            event = Event(number, result, None) if isinstance(result, RunState) else _failed(number, result)
            text = event.to_json()
            async with self._changed:
                self.event, self.text = event, text
                self._changed.notify_all()
            await asyncio.sleep(PERIOD_S)

    async def _look(self) -> RunState:
        state = await self.call(lambda client: self._state(client, self.run))
        if os.environ.get("HORA_TOKEN"):
            state = replace(state, controls=True)
        if self._observer is not None:
            self._observer(state)
        return state

    def _guarded(self, work: Callable[[Redis], T]) -> T:
        try:
            if self._client is None:
                self._client = connect(self._url, retries=0)
            return work(self._client)
        except redis.exceptions.RedisError as error:
            self._client = None
            raise HoraError(
                f"Redis at {hidden(self._url)} does not answer ({error}); the views continue when it does"
            ) from None


def _failed(number: int, error: BaseException) -> Event:
    if isinstance(error, HoraError):
        return Event(number, None, str(error))
    log.error("the run cannot be read", exc_info=error)
    return Event(number, None, f"the run cannot be read: {type(error).__name__}: {error}")
