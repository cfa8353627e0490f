"""The tokens that a chat template writes between two turns of the assistant.

The difference of two renderings does not work: templates strip white space, omit earlier reasoning, or insert
an empty reasoning block. Instead, render a conversation with a marker as the assistant's turn, and use the
text after the marker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hora_rl.common.answer_format import after_thought, has_channels
from hora_rl.common.config import DataConfig
from hora_rl.common.data.chat_template import templated
from hora_rl.common.data.control_tokens import PlainTexts
from hora_rl.common.data.stop_tokens import is_tag, silent_tokens, spoken
from hora_rl.common.errors import EnvironmentFault
from hora_rl.common.types import Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, object]
MARK = "assistant-said-this-5f0c2e"  # without white space, which templates strip


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
        """`ids` (M,) without the turn's end token, if that is `last`.

        Also drops white space before the end token, which some templates write (Llama 2). There only a
        control token counts as an end token: any other may belong to the next message.
        """
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
    """The message without a thought in channels: the templates of these families refuse it in a text, or
    leave it out."""
    content = message.get("content")
    if message.get("role") != "assistant" or not isinstance(content, str) or not has_channels(content):
        return message
    return {**message, "content": (after_thought(content) or "").strip()}
