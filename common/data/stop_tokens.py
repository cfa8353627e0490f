"""Tokens that end a completion, and the completion's text without special tokens.

Under a chat template, a base model ends its turn with the template's token, which its generation
configuration may not name: Qwen2.5's base models name `<|endoftext|>`, their template writes `<|im_end|>`.
Without that token in the list, a completion runs to its limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from hora_rl.common.answers import TAGS
from hora_rl.common.config import Config, Model
from hora_rl.common.errors import ConfigError
from hora_rl.common.thoughts import is_mark
from hora_rl.common.weights.model_files import own_configuration

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SAID = "the end of a turn"  # the assistant's text in the probe conversation of `turn_end`


def stop_tokens(config: Config, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Unique ids of the tokens that end a completion: from the generation configuration, the tokenizer, the
    end of the assistant's turn in the chat template, and `rollout.stop`.

    Raises ConfigError for an entry of `rollout.stop` that is not one token, and if no token ends a
    completion."""
    found = [*_of_generation(config.model), tokenizer.eos_token_id]
    if any(config.of(source).data.chat for source in config.source_names) and tokenizer.chat_template:
        found.append(turn_end(tokenizer))
    found += [_one_token(tokenizer, text) for text in config.rollout.stop]
    ids = tuple(dict.fromkeys(int(i) for i in found if i is not None))
    if not ids:
        raise ConfigError(
            f"model.path ({config.model.path}): neither its generation configuration, its tokenizer nor its "
            "chat template names a token that ends a completion: name one in rollout.stop"
        )
    return ids


def named(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """`<|im_end|> (151645), <|endoftext|> (151643)`."""
    return ", ".join(f"{tokenizer.convert_ids_to_tokens(i)} ({i})" for i in ids)


def turn_end(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The token that the chat template writes after the assistant's text; None if it is not one token, or the
    template has no assistant turn."""
    from jinja2 import TemplateError

    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _SAID}]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    except (TemplateError, TypeError, KeyError, ValueError):  # `templated` reports a template without use
        return None
    assert isinstance(text, str)
    _, found, after = text.rpartition(_SAID)
    ids = tokenizer.encode(after.lstrip(), add_special_tokens=False) if found else []
    own = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    return ids[0] if ids and ids[0] in own else None


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
    tokenizer: PreTrainedTokenizerBase, silent: frozenset[int], ids: Sequence[int], finish_reason: str | None
) -> str:
    """The text of a completion's `ids`, without its end token and the `silent` ones. A tag that ended it
    (`rollout.stop`) stays."""
    ended = finish_reason == "stop" and not is_tag(tokenizer, int(ids[-1]))
    return spoken(tokenizer, silent, ids[:-1] if ended else ids)


def _of_generation(model: Model) -> Iterator[int]:
    """The end tokens of the model's generation configuration; without one, of its configuration."""
    from transformers import GenerationConfig

    ends = None
    try:
        ends = GenerationConfig.from_pretrained(model.path).eos_token_id
    except OSError:
        with suppress(OSError, ValueError, AttributeError):  # the part that loads the model reports the error
            ends = own_configuration(model).eos_token_id
    yield from [ends] if isinstance(ends, int) else ends or []


def _one_token(tokenizer: PreTrainedTokenizerBase, text: str) -> int:
    ids = tokenizer.encode(text, add_special_tokens=False)
    if len(ids) != 1:
        parts = ", ".join(repr(tokenizer.decode([i])) for i in ids[:8])
        raise ConfigError(
            f"rollout.stop: {text!r} is {len(ids)} tokens of {tokenizer.name_or_path} ({parts}): name a "
            "single token of its vocabulary"
        )
    return int(ids[0])
