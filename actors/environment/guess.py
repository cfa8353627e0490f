"""The smallest environment: guess the number in the row's answer. A wrong guess gets the hint higher or
lower.

Reward `solved` is 1 for a correct guess and defines success. `speed` falls from 1 to 0 with the number of
turns.
"""

import re

from hora_rl.actors.environment.protocol import Episode, EpisodeOver, Speaker, Tools
from hora_rl.common.data.rows import Row

NUMBER = re.compile(r"\d+")
LONGEST = 100
"""Maximum digits of a guess: Python refuses to convert thousands of digits."""


async def guess(row: Row, policy: Speaker, sandbox: Tools) -> Episode:
    """One game. `row.answer` is an integer. The first number in a turn is the policy's guess."""
    secret, turns = int(row.answer), policy.turns_left
    try:
        said = await policy.generate()
        while (number := _number(said.text)) != secret:
            said = await policy.generate({"role": "user", "content": _hint(number, secret, row.problem)})
    except EpisodeOver:
        return Episode({"solved": 0.0, "speed": 0.0})
    return Episode({"solved": 1.0, "speed": (policy.turns_left + 1) / turns})


def _number(text: str) -> int | None:
    """The first number in `text`; None if missing or longer than LONGEST digits."""
    found = NUMBER.search(text)
    return None if found is None or len(found.group()) > LONGEST else int(found.group())


def _hint(number: int | None, secret: int, problem: str) -> str:
    """The hint, followed by the problem."""
    word = "no number" if number is None else "higher" if number < secret else "lower"
    return f"\n{word}\n{problem}"
