"""Environments by name; the built-in ones are `guess` and `python`.

`guess`, the smallest one: guess the number in the row's answer. A wrong guess gets the hint higher or lower.
Reward `solved` is 1 for a correct guess and defines success. `speed` falls from 1 to 0 with the number of
turns.

`python`, a tool: the policy may write a program in a ```python block of a turn and reads the output in the
next message. Programs run only in the sandbox. The last turn is the answer; rewards judge it like a
completion.
"""

import inspect
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hora_rl.actors.environment.protocol import Episode, EpisodeFunction, EpisodeOver, Speaker, Tools
from hora_rl.actors.environment.verifiers_bridge.process import VerifiersEnvironment
from hora_rl.common.config import EnvironmentConfig
from hora_rl.common.config.environment import BUILT_IN, LIBRARY
from hora_rl.common.data.rows import Row
from hora_rl.common.errors import ConfigError
from hora_rl.common.user_code import load_function

BEGIN, END = "```python\n", "```"
NUMBER = re.compile(r"\d+")
LONGEST = 100
"""Maximum digits of a guess: Python refuses to convert thousands of digits."""


async def guess(row: Row, policy: Speaker, sandbox: Tools) -> Episode:
    """One game. `row.answer` is an integer. The first number in a turn is the policy's guess."""
    secret, turns = int(row.answer), policy.turns_left
    try:
        turn = await policy.generate()
        while (number := _number(turn.text)) != secret:
            hint = "no number" if number is None else "higher" if number < secret else "lower"
            turn = await policy.generate({"role": "user", "content": f"\n{hint}\n{row.problem}"})
    except EpisodeOver:
        return Episode({"solved": 0.0, "speed": 0.0})
    return Episode({"solved": 1.0, "speed": (policy.turns_left + 1) / turns})


def _number(text: str) -> int | None:
    match = NUMBER.search(text)
    return None if match is None or len(match.group()) > LONGEST else int(match.group())


async def python_tool(row: Row, policy: Speaker, sandbox: Tools) -> Episode:
    """One problem. `runs` is the number of executed programs."""
    runs = 0
    try:
        turn = await policy.generate()
        while (program := written(turn.text)) is not None:
            runs += 1
            printed = await sandbox.python(program)
            turn = await policy.generate({"role": "user", "content": f"```output\n{printed}\n```"})
    except EpisodeOver:
        pass  # the last turn is the answer
    return Episode({"runs": float(runs)})


def written(text: str) -> str | None:
    """The first program in `text`; None without a complete block. Linear, unlike a regular expression."""
    program, closed, _ = text.partition(BEGIN)[2].partition(END)
    return program if closed else None


OWN = dict(zip(BUILT_IN, (guess, python_tool), strict=True))


@asynccontextmanager
async def environment_of(environment: EnvironmentConfig, run: str) -> AsyncIterator[EpisodeFunction]:
    """The configured environment, ready inside the block. Raises ConfigError if it cannot be loaded."""
    name = environment.path or ""
    if name != LIBRARY:
        yield load_environment(name)
        return
    library = VerifiersEnvironment(environment.verifiers, run)
    try:
        await library.start()
        yield library.episode
    finally:
        await library.close()


def load_environment(name: str) -> EpisodeFunction:
    """The built-in or user-defined environment of this name. Raises ConfigError if it cannot be loaded."""
    if name in OWN:
        return OWN[name]
    function = load_function("environment.path", name, f"{', '.join((*OWN, LIBRARY))} or ")
    if not inspect.iscoroutinefunction(function):
        raise ConfigError(f"environment.path: {name!r} is no `async def`")
    try:
        inspect.signature(function).bind(None, None, None)
    except TypeError:
        raise ConfigError(
            f"environment.path: {name!r} must take three arguments: row, policy, sandbox"
        ) from None
    return function
