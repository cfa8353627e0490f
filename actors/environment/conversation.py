"""A conversation stored as tokens, so that the learner trains on exactly the sampled tokens.

Conversations are append-only. Turns keep their sampled tokens. Other messages are rendered by the chat
template, tokenized and appended. Sampled tokens are never decoded and encoded again, because that changes
most sequences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

import numpy as np

from hora_rl.actors.environment.template import Message, Template
from hora_rl.common.errors import EnvironmentFault
from hora_rl.common.types import Completion, Tokens, Turn, VersionSpan

History = Literal["append", "render"]


class Conversation:
    """One episode's turns after `prompt` (P,), the tokens of `opening`.

    With `history` append all turns form one sequence. With render each later turn is a separate sequence,
    whose context the template renders from all messages so far. Templates may omit reasoning there.
    """

    def __init__(
        self, template: Template, opening: Sequence[Message], prompt: Tokens, history: History = "append"
    ) -> None:
        self._template, self._history = template, history
        self._messages = [_kept(message) for message in opening]
        self._context = prompt
        self._answers: list[Completion] = []
        self._turns: list[Turn] = []

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages so far, read-only, with the policy's turns as text."""
        return tuple(self._messages)

    @property
    def turns(self) -> int:
        """The number of turns of the policy so far."""
        return len(self._answers)

    @property
    def sampled(self) -> int:
        """The number of sampled tokens so far."""
        return sum(len(answer.tokens) for answer in self._answers)

    def context(self, new: Sequence[Message]) -> Tokens:
        """The context (T,) of the next turn, after the messages `new`. Does not change the conversation.

        Raises EnvironmentFault for a message of the assistant, for no message after a turn that ended, and
        for an order of roles that the template refuses.
        """
        if any(message.get("role") == "assistant" for message in new):
            raise EnvironmentFault("changes the history: what the assistant says is the policy's to sample")
        if not self._answers:
            if new:
                raise EnvironmentFault(
                    "changes the history: the first turn follows the row's prompt, which data.template and "
                    "data.system write"
                )
            return self._context
        if not new:
            if self._answers[-1].finish_reason == "stop":
                raise EnvironmentFault("asks for another turn and says nothing after one that ended")
            return self._context
        if self._history == "render":
            return self._template.whole([*self._messages, *new])
        piece = self._template.piece(new, last=int(self._answers[-1].tokens[-1]))
        return np.concatenate([self._context, piece])

    def append(self, new: Sequence[Message], context: Tokens, answer: Completion) -> None:
        """Append `new` and the policy's turn. `context` is the result of `context(new)`."""
        anew = bool(self._answers) and self._history == "render" and bool(new)
        between = context if anew else context[len(self._context) :]
        self._turns.append(Turn(len(answer.tokens), between, anew))
        self._messages += [_kept(message) for message in new]
        if self._answers and not new:  # continues a truncated turn
            turn = {**self._messages.pop(), "content": f"{self._answers[-1].text}{answer.text}"}
        else:
            turn = {"role": "assistant", "content": answer.text}
        self._messages.append(_kept(turn))
        self._answers.append(answer)
        self._context = np.concatenate([context, answer.tokens])

    def rest(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages that a longer conversation adds to this one. Raises EnvironmentFault unless `messages`
        starts with all messages so far."""
        for number, (theirs, ours) in enumerate(zip(messages, self._messages, strict=False)):
            if dict(theirs) != dict(ours):
                raise EnvironmentFault(f"changes the history: message {number} is not what was said")
        if len(messages) < len(self._messages):
            raise EnvironmentFault(
                f"changes the history: it holds {len(messages)} messages, and {len(self._messages)} were said"
            )
        return messages[len(self._messages) :]

    def completion(self, rewards: Mapping[str, float], *, cut: bool) -> Completion:
        """The episode as one completion with these rewards. `cut`: the episode ended at a limit. Raises
        EnvironmentFault if the policy had no turn."""
        if not self._answers:
            raise EnvironmentFault("ends before the policy had a turn: there is nothing to learn from")
        first, last = self._answers[0], self._answers[-1]
        origin = last.origin
        if origin is not None and first.origin is not None:
            origin = replace(origin, queued=first.origin.queued, first_token=first.origin.first_token)
        return Completion(
            text=last.text,
            tokens=np.concatenate([answer.tokens for answer in self._answers]),
            logprobs=np.concatenate([answer.logprobs for answer in self._answers]),
            finish_reason="length" if cut else last.finish_reason,
            spans=_spans(self._answers),
            origin=origin,
            turns=tuple(self._turns) if len(self._turns) > 1 else (),
            rewards=dict(rewards),
        )


def _spans(answers: Sequence[Completion]) -> tuple[VersionSpan, ...]:
    """Version spans of all sampled tokens, turn after turn."""
    spans: list[VersionSpan] = []
    at = 0
    for answer in answers:
        for span in answer.spans:
            start, end = at + span.start, at + span.end
            if spans and spans[-1].version == span.version:
                start = spans.pop().start
            spans.append(VersionSpan(span.version, start, end))
        at += len(answer.tokens)
    return tuple(spans)


def _kept(message: Message) -> Message:
    return MappingProxyType(dict(message))
