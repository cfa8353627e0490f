"""Texts of rows and environments without control tokens, so that none of them ends or begins a turn.

Control tokens are the tokenizer's special tokens, and the added tokens in signs (`<|user|>`) that the chat
template writes, but for the tags of thought and answer. Each one in a text gets a space after its first
character."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from hora_rl.common.answer_format import MARKS, TAGS
from hora_rl.common.config import DataConfig
from hora_rl.common.data.stop_tokens import special_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

AnyJson = TypeVar("AnyJson")
WORDS = {*TAGS, *(mark for marks in MARKS for mark in marks if "|" not in mark)}
"""Tags that prompts write to ask for a form."""
_SIGNS = re.compile(r"\W.*\W", re.DOTALL)


class PlainTexts:
    """Breaks the control tokens in texts under the template of `data`."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, data: DataConfig) -> None:
        self._pattern = _pattern(tokenizer, data.chat_template or str(tokenizer.chat_template))

    def __call__(self, value: AnyJson) -> AnyJson:
        """`value`, a text or texts in lists and mappings, with a space in each control token."""
        if self._pattern is None:
            return value
        broken: Any = value
        if isinstance(value, str):
            broken = self._pattern.sub(r"\g<0> ", value)
        elif isinstance(value, Mapping):
            broken = {name: self(item) for name, item in value.items()}
        elif isinstance(value, list | tuple):
            broken = type(value)(self(item) for item in value)
        return broken

    def starts(self, text: str) -> bool:
        """Whether `text` begins with a control token."""
        return self._pattern is not None and self._pattern.match(text.lstrip()) is not None

    def holds(self, text: str) -> bool:
        """Whether a control token is in `text`."""
        return self._pattern is not None and self._pattern.search(text) is not None


@lru_cache(maxsize=16)
def _pattern(tokenizer: PreTrainedTokenizerBase, template: str) -> re.Pattern[str] | None:
    """Matches the first character of a control token, also where two overlap."""
    added = (token.content for token in tokenizer.added_tokens_decoder.values())
    written = {word for word in added if word in template and _SIGNS.fullmatch(word)}
    special = set(map(str, tokenizer.convert_ids_to_tokens(sorted(special_tokens(tokenizer)))))
    control = [word for word in (written | special) - WORDS if len(word) > 1 and not word.isspace()]
    words = "|".join(re.escape(word) for word in sorted(control))
    return re.compile(f"(?=(?:{words})).", re.DOTALL) if words else None
