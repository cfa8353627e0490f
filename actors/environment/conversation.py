"""A conversation stored as tokens, so that the learner trains on exactly the sampled tokens.

Conversations are append-only. Turns keep their sampled tokens: decoding and encoding them again would change
most sequences. The chat template renders other messages. The tokens between two turns are not the difference
of two renderings, because templates strip white space, omit earlier reasoning, or insert an empty reasoning
block. They are the text after a marker that stands for the assistant's turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import numpy as np

from hora_rl.common.answer_format import after_thought, has_channels
from hora_rl.common.config import DataConfig
from hora_rl.common.data.chat_template import templated
from hora_rl.common.data.special_tokens import PlainTexts, is_tag, silent_tokens, spoken
from hora_rl.common.errors import EnvironmentFault
from hora_rl.common.types import Completion, Tokens, Turn, VersionSpan

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, object]
MARK = "assistant-said-this-5f0c2e"  # without white space, which templates strip
History = Literal["append", "render"]


class Template:
    """The chat template of `data` for `tokenizer`. Without `data.chat`, messages are concatenated."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, data: DataConfig) -> None:
        self._tokenizer, self._data = tokenizer, data
        silent, added = silent_tokens(tokenizer), tokenizer.added_tokens_decoder
        self._control = silent | {i for i in added if not is_tag(tokenizer, i)}
        self._texts = PlainTexts(tokenizer, data)

    def piece(self, new: Sequence[Message], last: int) -> Tokens:
        """Tokens (M,) between a turn with last token `last` and the next turn: the turn's end token unless it
        is `last`, the messages `new`, and the header of the assistant's turn."""
        harmless = [self._plain(message) for message in new]
        if not self._data.chat:
            return self._encode("".join(str(message["content"]) for message in harmless))
        exchange: list[Message] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": MARK}]
        _, mark, after = self._render([*exchange, *harmless]).partition(MARK)
        if not mark:
            raise EnvironmentFault(
                f"needs a chat template that shows what the assistant said, and that of "
                f"{self._tokenizer.name_or_path} does not: use environment.history: render"
            )
        return self._after_end(self._encode(after), last)

    def whole(self, messages: Sequence[Message]) -> Tokens:
        """Tokens (T,) of a conversation, rendered by the chat template up to the assistant's next turn."""
        return self._encode(self._render([self._plain(_shown(message)) for message in messages]))

    def _after_end(self, ids: Tokens, last: int) -> Tokens:
        """`ids` (M,) without the turn's end token, if that is `last`, and white space before it, which some
        templates write (Llama 2). There only a control token counts: any other may belong to the next
        message."""
        places = np.flatnonzero(ids == last)
        if not len(places):
            return ids
        before, rest = ids[: places[0]], ids[places[0] + 1 :]
        if not len(before):
            return rest
        space = not spoken(self._tokenizer, frozenset(), before.tolist()).strip()
        return rest if space and last in self._control else ids

    def _render(self, messages: Sequence[Message]) -> str:
        def refused(reason: str) -> EnvironmentFault:
            return EnvironmentFault(
                f"says what the chat template of {self._tokenizer.name_or_path} refuses: {reason[:200]}"
            )

        return templated(self._tokenizer, messages, self._data, refused)

    def _encode(self, text: str) -> Tokens:
        return np.asarray(self._tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)

    def _plain(self, message: Message) -> Message:
        """The message with its control tokens broken: the output of a tool must not end or begin a turn."""
        content = message.get("content")
        if not isinstance(content, str):
            raise EnvironmentFault(f"says {type(content).__name__} where a message's content must be text")
        return self._texts(message)


def _shown(message: Message) -> Message:
    """The message without a thought in channels: templates of these families refuse it or leave it out."""
    content = message.get("content")
    if message.get("role") != "assistant" or not isinstance(content, str) or not has_channels(content):
        return message
    return {**message, "content": (after_thought(content) or "").strip()}


class Conversation:
    """One episode's turns after `prompt` (P,), the tokens of `opening`. With `history` append all turns form
    one sequence. With render each later turn is a separate sequence, whose context the template renders from
    all messages so far. Templates may omit reasoning there."""

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
        return len(self._answers)

    @property
    def sampled(self) -> int:
        return sum(len(answer.tokens) for answer in self._answers)

    def context(self, new: Sequence[Message]) -> Tokens:
        """The context (T,) of the next turn, after the messages `new`. Changes nothing. Raises
        EnvironmentFault for a message of the assistant, none after a turn that ended, and roles that the
        template refuses."""
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
        """What `messages` adds to this conversation. Raises EnvironmentFault for another history."""
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
