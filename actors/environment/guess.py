"""The smallest environment: guess a number. The row's answer is the number. After each guess the environment
says whether it is higher or lower.

The reward `solved` is 1 for a right guess, and is the success. `speed` falls from 1 to 0 with the number of
turns.
"""

from __future__ import annotations

import re

from hora_rl.actors.environment.protocol import Episode, EpisodeOver, Speaker, Tools
from hora_rl.common.data.datasets import Row

NUMBER = re.compile(r"\d+")
LONGEST = 100
"""Digits of a number: Python refuses to read thousands."""


async def guess(row: Row, policy: Speaker, sandbox: Tools) -> Episode:
    """One game. `row.answer` is a whole number; the first number in a turn of the policy is its guess."""
    secret, turns = int(row.answer), policy.turns_left
    try:
        said = await policy.generate()
        while (number := _number(said.text)) != secret:
            said = await policy.generate({"role": "user", "content": _hint(number, secret, row.problem)})
    except EpisodeOver:
        return Episode({"solved": 0.0, "speed": 0.0})
    return Episode({"solved": 1.0, "speed": (policy.turns_left + 1) / turns})


def _number(text: str) -> int | None:
    """The first number of `text`; None where there is none of up to LONGEST digits."""
    found = NUMBER.search(text)
    return None if found is None or len(found.group()) > LONGEST else int(found.group())


def _hint(number: int | None, secret: int, problem: str) -> str:
    """The hint, followed by the problem."""
    word = "no number" if number is None else "higher" if number < secret else "lower"
    return f"\n{word}\n{problem}"
