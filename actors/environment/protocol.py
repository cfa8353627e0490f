"""The interface of an environment.

    async def episode(row, policy, sandbox):
        turn = await policy.generate()                      # the first turn follows the row's prompt
        while turn.text != row.answer:
            turn = await policy.generate({"role": "user", "content": "no"})
        return Episode({"solved": 1.0})

`row` is a row of the data set (`common.data.rows.Row`). An episode ends when the function returns, or
when `generate` raises `EpisodeOver` at a limit of `environment`. The function may catch this error and return
an `Episode`; otherwise all rewards are 0.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hora_rl.actors.environment.conversation import Message
from hora_rl.common.data.rows import Row
from hora_rl.common.types import FinishReason, Tokens


@dataclass(frozen=True, slots=True)
class Episode:
    """The result of an episode: finite rewards by name. `reward.weights` and `reward.success` refer to them
    as `episode.NAME`. Use separate rewards for partial credit and for success."""

    rewards: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """One turn of the policy, without special tokens. `finish_reason`: length for a truncated turn."""

    text: str
    tokens: Tokens
    finish_reason: FinishReason


class EpisodeOver(Exception):
    """A limit of `environment` is reached. No further turn is possible."""


class Speaker(Protocol):
    """The policy in one append-only conversation."""

    async def generate(self, *new: Message) -> Reply:
        """The policy's next turn, after the messages `new`. Raises EpisodeOver at a limit."""

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """The policy's next turn in the conversation `messages`, which starts with all messages so far."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages so far, read-only."""

    @property
    def turns_left(self) -> int:
        """The number of turns that remain."""


class Tools(Protocol):
    """Runs programs that the policy wrote."""

    async def python(self, source: str, stdin: str = "") -> str:
        """Run a Python program in the sandbox. Returns its output, of a few thousand
        characters at most, and its error."""


EpisodeFunction = Callable[[Row, Speaker, Tools], Awaitable[Episode]]
