"""A user's own reward: `package.module:function`, called once per completion.

    def reward(answer): ...                        one parameter: an `Answer`, with the prompt's whole row
    def reward(problem, completion, gold): ...     three: the texts alone
    async def reward(answer): ...                  a service or a model as judge

It returns one finite number. One that raises stops the run with its name and the row's; one that raises
`Unavailable` is asked again until its service is back (`reward.wait_limit_s`).
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from common.errors import Unavailable

UserReward = Callable[..., Any]


class Answer(NamedTuple):
    """What a reward judges: a completion with what it answers. `gold` is the gold answer: text, or any other
    JSON value. `row` holds every column of the data set,
    `prompt_index` is the prompt's number in the run, `tokens` the completion's length, `finish_reason` stop
    or length."""

    problem: str
    completion: str
    gold: Any
    row: Mapping[str, Any] = {}
    prompt_index: int = 0
    tokens: int = 0
    finish_reason: str = "stop"

    @property
    def place(self) -> str:
        """Which row this is, for a message."""
        return f"row {self.prompt_index}, problem {self.problem!r:.60}"


def load_reward(name: str) -> UserReward:
    """The function that `package.module:function` names. Raises ValueError saying what is wrong with it."""
    module, _, function = name.partition(":")
    try:
        reward = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"reward: cannot load {name!r}: {error}; write package.module:function") from error
    if not callable(reward):
        raise ValueError(f"reward: {name!r} is a {type(reward).__name__}, not a function")
    return reward  # type: ignore[no-any-return]


def is_async(name: str) -> bool:
    return inspect.iscoroutinefunction(load_reward(name))


def user_reward(name: str, answer: Answer) -> float:
    """Value of a plain reward. Raises ValueError where it fails or returns no finite number, Unavailable as
    the reward does."""
    reward = load_reward(name)
    with _failures_named(name, answer):
        value = reward(*_arguments(reward, answer))
    return _number(name, answer, value)


async def user_reward_async(name: str, answer: Answer) -> float:
    """`user_reward` for an `async` one."""
    reward = load_reward(name)
    with _failures_named(name, answer):
        value = await reward(*_arguments(reward, answer))
    return _number(name, answer, value)


@contextmanager
def _failures_named(name: str, answer: Answer) -> Iterator[None]:
    """Whatever a user's code raises comes back with the reward's and the row's name, but for Unavailable."""
    try:
        yield
    except Unavailable:
        raise
    except Exception as error:
        raise _failed(name, answer, error) from error


def _arguments(reward: UserReward, answer: Answer) -> tuple[Any, ...]:
    parameters = inspect.signature(reward).parameters.values()
    needed = [
        p
        for p in parameters
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    variable = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return (answer,) if len(needed) == 1 and not variable else answer[:3]


def _failed(name: str, answer: Answer, error: Exception) -> ValueError:
    return ValueError(f"reward {name!r} raised {type(error).__name__}: {error} ({answer.place})")


def _number(name: str, answer: Answer, value: Any) -> float:
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    raise ValueError(
        f"reward {name!r} returned {value!r:.80} ({answer.place}): it must return one finite number"
    )
