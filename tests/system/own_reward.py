"""A reward and a way to find answers of a user's own. Such functions always run in a verifier's worker
process."""

import os
from collections.abc import Sequence
from pathlib import Path

from hora_rl.common.data.rewards import Answer


def brevity(problem: str, completion: str, answer: str) -> float:
    """More for fewer characters."""
    del problem, answer
    return 1.0 / (1 + len(completion))


def last_word(completion: str) -> str:
    """The answer of a completion that ends with it."""
    return completion.split()[-1]


def broken(problem: str, completion: str, answer: str) -> float:
    """A reward that fails."""
    raise RuntimeError("no reward today")


def wants_column(answer: Answer) -> float:
    """A reward whose rows lack a column, while OWN_REWARD_BREAKS names a file that says `column`."""
    return float(answer.row["expected"]) if _breaks("column") else 1.0 / (1 + answer.tokens)


def ranks(answers: Sequence[Answer]) -> list[float]:
    """A reward of a group that is one value short, while that file says `length`."""
    values = [float(a.tokens == min(b.tokens for b in answers)) for a in answers]
    return values[1:] if _breaks("length") else values


def _breaks(how: str) -> bool:
    file = Path(os.environ["OWN_REWARD_BREAKS"])
    return file.exists() and file.read_text() == how
