"""Tokens and texts that end a completion, its text without special tokens, and texts without control tokens.

A text of `rollout.stop` ends a completion with the token that completes it, in whatever tokens it comes. All
tokens up to that one are kept and trained. The completion's text ends where the stop begins, to the
character, but keeps a tag of thought or answer and a code fence that are in it: rewards read them.

Under a chat template, a base model ends its turn with the template's token, which its generation
configuration may not name: Qwen2.5's base models name `<|endoftext|>`, their template writes `<|im_end|>`.
Without that token in the list, a completion runs to its limit.

No text of a row or an environment ends or begins a turn: each control token in it gets a space after its
first character. Control tokens are the tokenizer's special tokens, and the added tokens in signs (`<|user|>`)
that the chat template writes, but for the tags of thought and answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from hora_rl.common.answer_format import MARKS, TAGS, is_mark
from hora_rl.common.config import Config, DataConfig, ModelConfig
from hora_rl.common.data.chat_template import templated
from hora_rl.common.errors import ConfigError
from hora_rl.common.model.model_files import own_configuration

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


READ = (*TAGS, *(mark for marks in MARKS for mark in marks), "```")
"""Marks that rewards read, and that stay in the text of a completion that they end."""
AnyJson = TypeVar("AnyJson")
WORDS = {*TAGS, *(mark for marks in MARKS for mark in marks if "|" not in mark)}
"""Tags that prompts write to ask for a form."""
_SIGNS = re.compile(r"\W.*\W", re.DOTALL)


class _NoTurn(Exception):
    """The template refuses a turn of the assistant."""


_SAID = "the end of a turn"  # the assistant's text in the probe conversation of `turn_end`


def stop_tokens(config: Config, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Unique ids of the tokens that end a completion: of the generation configuration, the tokenizer, the end
    of a turn in the chat template, and entries of `rollout.stop` that are one token. Raises ConfigError if no
    token and no text ends a completion."""
    candidates = [*_of_generation(config.model), tokenizer.eos_token_id]
    datas = [config.of(source).data for source in config.source_names]
    candidates += [
        turn_end(tokenizer, data)
        for data in datas
        if data.chat and (data.chat_template or tokenizer.chat_template)
    ]
    candidates += [_one_token(tokenizer, text) for text in config.rollout.stop]
    ids = tuple(dict.fromkeys(int(i) for i in candidates if i is not None))
    if not ids and not config.rollout.stop:
        raise ConfigError(
            f"model.path ({config.model.path}): neither its generation configuration, its tokenizer nor its "
            "chat template names a token that ends a completion: name one in rollout.stop"
        )
    return ids


def stop_texts(stop: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """The entries of `rollout.stop` to look for in the text: all but added tokens, which are one token."""
    added = {token.content for token in tokenizer.added_tokens_decoder.values()}
    return tuple(text for text in stop if text not in added)


def named(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], texts: Sequence[str] = ()) -> str:
    """`<|im_end|> (151645), <|endoftext|> (151643), 'Problem:'`."""
    return ", ".join([*(f"{tokenizer.convert_ids_to_tokens(i)} ({i})" for i in ids), *map(repr, texts)])


def turn_end(tokenizer: PreTrainedTokenizerBase, data: DataConfig) -> int | None:
    """The token that the template of `data` writes after the assistant's text; None if it is not one
    token."""
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _SAID}]
    try:
        text = templated(tokenizer, messages, data, _NoTurn, prompt=False)
    except _NoTurn:
        return None
    _, mark, after = text.rpartition(_SAID)
    ids = tokenizer.encode(after.lstrip(), add_special_tokens=False) if mark else []
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    return ids[0] if ids and ids[0] in special else None


def silent_tokens(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids of special tokens, which a completion's text omits, except the tags of thought and answer."""
    return frozenset(i for i in special_tokens(tokenizer) if not is_tag(tokenizer, i))


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    added = tokenizer.added_tokens_decoder
    return frozenset((*tokenizer.all_special_ids, *(i for i, token in added.items() if token.special)))


def is_tag(tokenizer: PreTrainedTokenizerBase, token: int) -> bool:
    """Whether a token is one of the tags of an answer, or of a mark of a thought."""
    text = str(tokenizer.convert_ids_to_tokens(token))
    return text in TAGS or is_mark(text)


def spoken(tokenizer: PreTrainedTokenizerBase, silent: frozenset[int], ids: Sequence[int]) -> str:
    """The text of `ids` without the `silent` ones."""
    kept = [i for i in ids if i not in silent]
    return str(tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def completed(
    tokenizer: PreTrainedTokenizerBase,
    silent: frozenset[int],
    ids: Sequence[int],
    finish_reason: str | None,
    texts: Sequence[str] = (),
) -> str:
    """The text of a completion's `ids`, without its end (a token, or one of the stop `texts`) and the
    `silent` tokens. A tag that ended it (`rollout.stop`) stays."""
    if finish_reason == "stop" and texts and (cut := _before(tokenizer, silent, ids, texts)) is not None:
        return cut
    ended = finish_reason == "stop" and not is_tag(tokenizer, int(ids[-1]))
    return spoken(tokenizer, silent, ids[:-1] if ended else ids)


def _before(
    tokenizer: PreTrainedTokenizerBase, silent: frozenset[int], ids: Sequence[int], texts: Sequence[str]
) -> str | None:
    """The text before the first stop to be complete; None if there is none."""
    full = spoken(tokenizer, frozenset(), ids)
    ends = [(start + len(text), start, text) for text in texts if (start := full.find(text)) >= 0]
    if not ends:
        return None
    _, begin, text = min(ends)
    last = begin + max((text.rfind(mark) + len(mark) for mark in READ if mark in text), default=0)
    count = len(ids)
    # Token `count` holds the character at `last`, so earlier tokens are kept whole.
    while len(before := spoken(tokenizer, frozenset(), ids[:count])) > last or not full.startswith(before):
        count -= 1
    return spoken(tokenizer, silent, ids[:count]) + full[len(before) : last]


def _of_generation(model: ModelConfig) -> Iterator[int]:
    """The end tokens of the model's generation configuration; without one, of its configuration."""
    from transformers import GenerationConfig

    ends = None
    try:
        ends = GenerationConfig.from_pretrained(model.path).eos_token_id
    except OSError:
        with suppress(OSError, ValueError, AttributeError):  # the part that loads the model reports the error
            ends = own_configuration(model).eos_token_id
    yield from [ends] if isinstance(ends, int) else ends or []


def _one_token(tokenizer: PreTrainedTokenizerBase, text: str) -> int | None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    return int(ids[0]) if len(ids) == 1 and tokenizer.decode(ids) == text else None


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
        return self._pattern is not None and self._pattern.match(text.lstrip()) is not None

    def holds(self, text: str) -> bool:
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
