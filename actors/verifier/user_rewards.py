"""User-defined rewards of completions and groups. Plain functions run in killable processes. Async rewards
share one event loop in a thread, so a blocking reward cannot block the replica. Unavailable rewards are
retried."""

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

from pebble import ProcessExpired

from hora_rl.actors.verifier import answers
from hora_rl.actors.verifier.code.runner import ProgramPool
from hora_rl.common.config import RewardConfig
from hora_rl.common.config.reward import WAIT_LIMIT_S
from hora_rl.common.data.rewards import (
    Answer,
    UserReward,
    is_async,
    is_group,
    load_reward,
    needed_parameters,
)
from hora_rl.common.errors import AwayTooLong, Unavailable
from hora_rl.common.user_code import failures_named, function_of, is_finite, is_user_function

T = TypeVar("T")
Value = float | dict[str, float]
"""Return value of a user's reward for one completion: a number, or numbers by name."""
AT_ONCE = 64
"""Maximum concurrent calls of async rewards."""
LONGEST_PAUSE_S = 10.0
"""Longest pause between two tries of an unavailable reward."""
Run = Callable[..., Awaitable[Any]]
"""Calls a function with arguments in a worker process, which is killed after `limit_s`."""


class AsyncRewards:
    """The event loop of async rewards. Use from one event loop; `close()` ends the thread."""

    def __init__(self, time_limit_s: float) -> None:
        self._limit = time_limit_s
        self._places = asyncio.Semaphore(AT_ONCE)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="async-rewards", daemon=True).start()

    async def ask(self, function: Callable[..., Coroutine[Any, Any, T]], *args: object) -> T:
        """The result of `function`. Raises TimeoutError after the time limit, and the function's errors."""
        async with self._places:
            call = asyncio.run_coroutine_threadsafe(function(*args), self._loop)
            return await asyncio.wait_for(asyncio.wrap_future(call), self._limit)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


class UserRewards:
    """The rewards that need a user's function or tests of programs, and the place of answers. `run` calls a
    function in a worker process; up to `processes` programs run at a time. Raises ConfigError."""

    def __init__(self, reward: RewardConfig, run: Run, processes: int) -> None:
        self.reward, self._run = reward, run
        self._extract = answers.ANSWERS.get(reward.answer)
        answers.load_extract(reward.answer)
        codes = "code_tests" in reward.names
        self.programs = ProgramPool(reward.code_tests, processes) if codes else None
        functions = [name for name in reward.names if is_user_function(name)]
        self._names = {f: [n for n in functions if function_of(n) == f] for f in map(function_of, functions)}
        self._groups = [f for f in self._names if is_group(f)]
        self._singles = [f for f in self._names if f not in self._groups]
        self._async = {f for f in self._names if is_async(f)}
        self._judges = AsyncRewards(reward.time_limit_s) if self._async else None
        self.away: dict[str, str] = {}

    @property
    def in_workers(self) -> list[str]:
        """The functions that run in worker processes: all except `async` ones."""
        extract = [] if self._extract else [self.reward.answer]
        return [*(f for f in self._names if f not in self._async), *extract]

    def close(self) -> None:
        if self.programs is not None:
            self.programs.close()
        if self._judges is not None:
            self._judges.close()

    async def score(self, answer: Answer) -> dict[str, float]:
        """The rewards of one completion. Raises ValueError, AwayTooLong, and as `ProgramPool.score`."""
        scored: dict[str, float] = {}
        if self.programs is not None:
            scored["code_tests"] = await self.programs.score(answer)
        for f in self._singles:
            value = await self._patient(f, partial(self._call, f, answer))
            scored |= {name: _part(name, value, answer.place) for name in self._names[f]}
        return scored

    async def score_group(self, group: list[Answer]) -> list[dict[str, float]]:
        """The group rewards of each completion of one group. Raises as `score` does."""
        scored: list[dict[str, float]] = [{} for _ in group]
        for f in self._groups:
            values = await self._patient(f, partial(self._call, f, group))
            for rewards, value, answer in zip(scored, values, group, strict=True):
                rewards |= {name: _part(name, value, answer.place) for name in self._names[f]}
        return scored

    async def answer_in(self, completion: str) -> str | None:
        if self._extract is not None:
            return self._extract(completion)
        name = self.reward.answer
        work = self._run(answers.user_answer, name, completion, limit_s=self.reward.time_limit_s)
        return await self._limited("reward.answer", name, work)

    async def _call(self, name: str, judged: Answer | list[Answer]) -> Any:
        if self._judges is not None and name in self._async:
            work: Awaitable[Any] = self._judges.ask(user_reward_async, name, judged)
        else:
            work = self._run(user_reward, name, judged, limit_s=self.reward.time_limit_s)
        return await self._limited("reward", name, work)

    async def _limited(self, key: str, name: str, work: Awaitable[T]) -> T:
        """The result of a call of the function that setting `key` names."""
        try:
            return await work
        except (TimeoutError, ProcessExpired) as error:
            limit = self.reward.time_limit_s
            raise ValueError(f"{key} {name!r} took over {limit} s or ended its process") from error

    async def _patient(self, name: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Call `ask`, and retry while it raises Unavailable. Raises AwayTooLong after WAIT_LIMIT_S."""
        deadline, pause = time.monotonic() + WAIT_LIMIT_S, 0.5
        while True:
            try:
                value = await ask()
            except Unavailable as error:
                self.away[name] = str(error)
                if time.monotonic() + pause > deadline:
                    raise AwayTooLong(
                        f"reward {name!r} was unavailable for {WAIT_LIMIT_S:g} s: {error}"
                    ) from None
                await asyncio.sleep(pause)
                pause = min(LONGEST_PAUSE_S, 2 * pause)
            else:
                self.away.pop(name, None)
                return value


def user_reward(name: str, judged: Answer | Sequence[Answer]) -> Value | list[Value]:
    """Value of a synchronous reward for one answer, or values (G,) for a group. Raises Unavailable as it
    does, and ValueError for any other failure."""
    reward = load_reward(name)
    with _named(name, judged):
        value = _called(reward, judged)
    return _checked(name, judged, value)


async def user_reward_async(name: str, judged: Answer | Sequence[Answer]) -> Value | list[Value]:
    """`user_reward` for an `async` function."""
    reward = load_reward(name)
    with _named(name, judged):
        value = await _called(reward, judged)
    return _checked(name, judged, value)


def _named(name: str, judged: Answer | Sequence[Answer]) -> AbstractContextManager[None]:
    where = judged.place if isinstance(judged, Answer) else judged[0].place
    return failures_named(f"reward {name!r}", f" ({where})")


def _called(reward: UserReward, judged: Answer | Sequence[Answer]) -> Any:
    if not isinstance(judged, Answer):
        return reward(list(judged))
    variable = any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(reward).parameters.values())
    return reward(judged) if len(needed_parameters(reward)) == 1 and not variable else reward(*judged[:3])


def _checked(name: str, judged: Answer | Sequence[Answer], value: object) -> Value | list[Value]:
    if isinstance(judged, Answer):
        return _value(name, judged, value)
    listed = None if not isinstance(value, Iterable) or isinstance(value, str | Mapping) else list(value)
    if listed is None or len(listed) != len(judged):
        returned = f"{value!r:.80}" if listed is None else f"{len(listed)} values"
        raise ValueError(
            f"reward {name!r} returned {returned} ({judged[0].place}): a reward of a group returns a list, "
            f"here of {len(judged)} values, one for each completion in their order"
        )
    return [_value(name, answer, value) for answer, value in zip(judged, listed, strict=True)]


def _value(name: str, answer: Answer, value: object) -> Value:
    if isinstance(value, Mapping):
        return {str(part): _number(f"{name}[{part}]", answer, number) for part, number in value.items()}
    return _number(name, answer, value)


def _number(name: str, answer: Answer, value: object) -> float:
    if is_finite(value):
        return float(value)
    raise ValueError(
        f"reward {name!r} returned {value!r:.80} ({answer.place}): it must return one finite number, or "
        "finite numbers by name"
    )


def _part(name: str, value: Value, where: str) -> float:
    """The reward `name` from the value of its function. Raises ValueError with `where`, the row."""
    function, bracket, rest = name.partition("[")
    part = rest.removesuffix("]")
    if isinstance(value, Mapping):
        if part in value:
            return value[part]
        there = ", ".join(f"{function}[{key}]" for key in value)
        raise ValueError(
            f"reward {function!r} returned named numbers without {name!r} ({where}): name {there} in "
            "reward.weights or reward.success"
        )
    if bracket:
        raise ValueError(
            f"reward {function!r} returned {value:g}, not numbers by name ({where}): it has no part {part!r}"
        )
    return value
