"""What an environment is written against.

    async def episode(row, policy, sandbox):
        said = await policy.generate()                      # the first turn follows the row's prompt
        while said.text != row.answer:
            said = await policy.generate({"role": "user", "content": "no"})
        return Episode({"solved": 1.0})

`row` is the data set's (`common.datasets.Row`). An episode ends when the function returns. It ends too when
`generate` raises `EpisodeOver`, because a limit of `environment` is reached: the function may catch that and
return what the policy earned, else every reward is 0.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from actors.environment.template import Message
from common.datasets import Row
from common.types import FinishReason, Tokens


@dataclass(frozen=True, slots=True)
class Episode:
    """How an episode ended: its rewards by name, each a finite number. `reward.weights` and `reward.success`
    name those in use as `episode.NAME`. Partial credit is a reward, and success another."""

    rewards: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Said:
    """One turn of the policy. `text` is without special tokens; `finish_reason` is length where a limit cut
    it."""

    text: str
    tokens: Tokens
    finish_reason: FinishReason


class EpisodeOver(Exception):
    """A limit of `environment` is reached, and the policy has no further turn."""


class Speaker(Protocol):
    """The policy in one conversation, which only grows."""

    async def generate(self, *new: Message) -> Said:
        """The policy's next turn, after what `new` says. Raises EpisodeOver at a limit."""

    async def reply(self, messages: Sequence[Message]) -> Said:
        """The policy's next turn to a whole conversation, which must begin with all that was said so far."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """All that was said so far, read-only."""

    @property
    def turns_left(self) -> int:
        """Turns that the policy may still have."""


class Tools(Protocol):
    """Where an environment runs what the policy wrote."""

    async def python(self, source: str, stdin: str = "") -> str:
        """What a Python program printed in the sandbox, cut to some thousand characters, and how it ended
        where that was not well."""


EpisodeFunction = Callable[[Row, Speaker, Tools], Awaitable[Episode]]
