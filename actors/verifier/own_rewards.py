"""User-defined rewards of completions and groups. Plain functions run in killable processes, `async` ones on
a separate event loop. Unavailable rewards are retried."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from pebble import ProcessExpired

from hora_rl.actors.verifier.judges import Judges
from hora_rl.common.config import Reward
from hora_rl.common.data.user_rewards import Answer, is_async, is_group, user_reward, user_reward_async
from hora_rl.common.errors import AwayTooLong, Unavailable
from hora_rl.common.reward_names import function_of, taken
from hora_rl.common.user_code import is_user_function

T = TypeVar("T")
LONGEST_PAUSE_S = 10.0
"""Longest pause between two tries of an unavailable reward."""
Run = Callable[..., Awaitable[Any]]
"""Calls a function with arguments in a worker process, which is killed after `limit_s`."""


class OwnRewards:
    """The user's functions named in `reward`. `run` calls one in a worker process."""

    def __init__(self, reward: Reward, run: Run) -> None:
        self._reward, self._run = reward, run
        own = [name for name in reward.names if is_user_function(name)]
        self._names = {f: [n for n in own if function_of(n) == f] for f in map(function_of, own)}
        self._groups = [f for f in self._names if is_group(f)]
        self._singles = [f for f in self._names if f not in self._groups]
        self._async = {f for f in self._names if is_async(f)}
        self._judges = Judges(reward.time_limit_s) if self._async else None
        self.away: dict[str, str] = {}

    @property
    def in_workers(self) -> list[str]:
        """The functions that run in worker processes: all except `async` ones."""
        return [f for f in self._names if f not in self._async]

    def close(self) -> None:
        if self._judges is not None:
            self._judges.close()

    async def score(self, answer: Answer) -> dict[str, float]:
        """The rewards of one completion. Raises ValueError if a reward fails, and AwayTooLong if it stays
        unavailable."""
        scored: dict[str, float] = {}
        for f in self._singles:
            value = await self._patient(f, partial(self._call, f, answer))
            scored |= taken(self._names[f], value, answer.place)
        return scored

    async def score_group(self, answers: Sequence[Answer]) -> list[dict[str, float]]:
        """The group rewards of each completion of one group. Raises as `score` does."""
        scored: list[dict[str, float]] = [{} for _ in answers]
        group = list(answers)
        for f in self._groups:
            values = await self._patient(f, partial(self._call, f, group))
            for found, value, answer in zip(scored, values, group, strict=True):
                found |= taken(self._names[f], value, answer.place)
        return scored

    async def call(self, key: str, function: Callable[..., Any], name: str, *args: Any) -> Any:
        """Call a user's function by name, within reward.time_limit_s. `key` is the setting that names it."""
        return await self._limited(key, name, self._run(function, name, *args, limit_s=self._limit))

    async def _call(self, name: str, judged: Answer | list[Answer]) -> Any:
        if self._judges is not None and name in self._async:
            return await self._limited("reward", name, self._judges.ask(user_reward_async, name, judged))
        return await self.call("reward", user_reward, name, judged)

    async def _limited(self, key: str, name: str, work: Awaitable[T]) -> T:
        try:
            return await work
        except (TimeoutError, ProcessExpired) as error:
            raise ValueError(f"{key} {name!r} took over {self._limit} s or ended its process") from error

    @property
    def _limit(self) -> float:
        return self._reward.time_limit_s

    async def _patient(self, name: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Call `ask`, and retry while it raises Unavailable. Raises AwayTooLong after reward.wait_limit_s."""
        deadline, pause = time.monotonic() + self._reward.wait_limit_s, 0.5
        while True:
            try:
                value = await ask()
            except Unavailable as error:
                self.away[name] = str(error)
                if time.monotonic() + pause > deadline:
                    raise AwayTooLong(
                        f"reward {name!r} was unavailable for reward.wait_limit_s = "
                        f"{self._reward.wait_limit_s:g} s: {error}"
                    ) from None
                await asyncio.sleep(pause)
                pause = min(LONGEST_PAUSE_S, 2 * pause)
            else:
                self.away.pop(name, None)
                return value
