"""A user's reward: `package.module:function`, called once per completion or once per group; and the weighted
sum of all rewards (paper, section 4).

    def reward(answer): ...                        one parameter: an `Answer`, with the prompt's row
    def reward(problem, completion, gold): ...     three: only the texts
    async def reward(answer): ...                  a service or a model as judge
    def reward(answers): ...                       one parameter of this name: all completions of a group

It needs the gold answer's column in each row, or the columns it names: `reward.columns = ("tests",)`.

It returns a finite number, or finite numbers by name; for a group, a list with one per completion. An error
stops the run and names function and row. `Unavailable` is retried for up to ten minutes."""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hora_rl.common.config import RewardConfig
from hora_rl.common.errors import ConfigError
from hora_rl.common.user_code import function_of, is_user_function, load_function

UserReward = Callable[..., object]
GROUP = "answers"
"""Parameter name of functions that take a group."""


class Answer(NamedTuple):
    """A completion for a reward to judge. `gold` is the gold answer: text or another JSON value. `row` has
    every column of the data set. `prompt_index` is the prompt's number in the run, `tokens` the completion's
    length, `finish_reason` stop or length, `source` the data set's name if the run has several."""

    problem: str
    completion: str
    gold: Any
    row: Mapping[str, Any] = {}
    prompt_index: int = 0
    tokens: int = 0
    finish_reason: str = "stop"
    source: str = ""

    @property
    def place(self) -> str:
        return f"prompt {self.prompt_index}, problem {self.problem!r:.60}"


def load_reward(name: str) -> UserReward:
    """The function `package.module:function`. Raises ConfigError."""
    return load_function("reward", name)


def columns_of(name: str) -> tuple[str, ...] | None:
    """The columns in the function's attribute `columns`; None without it, if it needs the gold answer."""
    named = getattr(load_reward(name), "columns", None)
    return None if named is None else tuple(map(str, (named,) if isinstance(named, str) else named))


def is_async(name: str) -> bool:
    return inspect.iscoroutinefunction(load_reward(name))


def is_group(name: str) -> bool:
    """Whether the function takes a group: its one parameter without a default is named `answers`."""
    return [p.name for p in needed_parameters(load_reward(name))] == [GROUP]


def group_functions(reward: RewardConfig, gate: str | None) -> tuple[str, ...]:
    """The user functions that rank groups. Raises ConfigError if the success or the warm-up `gate` uses one:
    Phase A counts both before a group is complete."""
    functions = dict.fromkeys(function_of(name) for name in reward.names if is_user_function(name))
    groups = tuple(function for function in functions if is_group(function))
    for key, name in (("reward.success", reward.success), ("allocation.warmup.reward", gate)):
        if name is not None and function_of(name) in groups:
            raise ConfigError(
                f"{key} ({name}) ranks a whole group, and Phase A counts it before its group is complete: "
                "name a reward of single completions"
            )
    return groups


def needed_parameters(reward: UserReward) -> list[inspect.Parameter]:
    return [
        p
        for p in inspect.signature(reward).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]


def total(rewards: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Weighted sum of the rewards that have a weight. Raises ValueError naming a missing reward."""
    missing = [name for name in weights if name not in rewards]
    if missing:
        raise ValueError(
            f"reward {missing[0]!r} has a weight but was not computed (there are: {sorted(rewards)})"
        )
    return math.fsum(weight * rewards[name] for name, weight in weights.items())
