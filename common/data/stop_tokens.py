"""Tokens and texts that end a completion, and the completion's text without special tokens.

A text of `rollout.stop` ends a completion with the token that completes it, in whatever tokens it comes. All
tokens up to that one are kept and trained. The completion's text ends where the stop begins, to the
character, but keeps a tag of thought or answer and a code fence that are in it: rewards read them.

Under a chat template, a base model ends its turn with the template's token, which its generation
configuration may not name: Qwen2.5's base models name `<|endoftext|>`, their template writes `<|im_end|>`.
Without that token in the list, a completion runs to its limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from hora_rl.common.answer_format import MARKS, TAGS, is_mark
from hora_rl.common.config import Config, DataConfig, ModelConfig
from hora_rl.common.data.chat_template import templated
from hora_rl.common.errors import ConfigError
from hora_rl.common.model.model_files import own_configuration

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


READ = (*TAGS, *(mark for marks in MARKS for mark in marks), "```")
"""Marks that rewards read, and that stay in the text of a completion that they end."""


class _NoTurn(Exception):
    """The template refuses a turn of the assistant."""


_SAID = "the end of a turn"  # the assistant's text in the probe conversation of `turn_end`


def stop_tokens(config: Config, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Unique ids of the tokens that end a completion: from the generation configuration, the tokenizer, the
    end of the assistant's turn in the chat template, and the entries of `rollout.stop` that are one token.

    Raises ConfigError if no token and no text ends a completion."""
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
    """The entries of `rollout.stop` that are looked for in the text: all but added tokens, which a text has
    as one token or not at all."""
    added = {token.content for token in tokenizer.added_tokens_decoder.values()}
    return tuple(text for text in stop if text not in added)


def named(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], texts: Sequence[str] = ()) -> str:
    """`<|im_end|> (151645), <|endoftext|> (151643), 'Problem:'`."""
    return ", ".join([*(f"{tokenizer.convert_ids_to_tokens(i)} ({i})" for i in ids), *map(repr, texts)])


def turn_end(tokenizer: PreTrainedTokenizerBase, data: DataConfig) -> int | None:
    """The token that the chat template of `data` writes after the assistant's text; None if it is not one
    token, or the template has no assistant turn."""
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
    """Ids of special tokens."""
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
