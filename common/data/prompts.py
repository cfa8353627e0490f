"""Renders problems to tokens, and loads and fingerprints the tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hora_rl.common.answer_format import prefill
from hora_rl.common.config import DataConfig
from hora_rl.common.data.chat_template import templated
from hora_rl.common.data.gym import TASK
from hora_rl.common.data.rows import Messages, Row, last_of_user
from hora_rl.common.data.special_tokens import PlainTexts
from hora_rl.common.errors import ConfigError, any_error_as, one_line
from hora_rl.common.types import Prompt, Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(path: str, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer of a Hugging Face folder or hub name, with the chat template of its processor if it has
    none of its own. Raises ConfigError if the folder is missing, has no tokenizer, or needs remote code."""
    from transformers import AutoTokenizer

    folder = Path(path)
    if not folder.is_dir() and (folder.is_absolute() or path.startswith((".", "~")) or path.count("/") != 1):
        raise ConfigError(f"model.path ({path}): no such folder, and not a hub name like Qwen/Qwen2.5-3B")

    def unusable(reason: str) -> ConfigError:
        return ConfigError(
            f"model.path ({path}): no usable tokenizer: {one_line(reason)} "
            "Check the name; without network, name a local folder."
        )

    with any_error_as(unusable):  # `tokenizers` raises plain Exception, transformers a dozen types
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    # From a folder with only config.json, transformers builds a tokenizer of special tokens.
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise ConfigError(f"model.path ({path}): no usable tokenizer: tokenizer.json is missing or empty")
    if not tokenizer.chat_template:
        tokenizer.chat_template = _of_processor(path)
    return tokenizer


def _of_processor(path: str) -> str | None:
    """The chat template in `chat_template.json`; None without that file or in another form."""
    from transformers.utils import cached_file

    with suppress(OSError, ValueError, TypeError, KeyError):
        file = cached_file(path, "chat_template.json", _raise_exceptions_for_missing_entries=False)
        template = json.loads(Path(file).read_text(encoding="utf-8"))["chat_template"] if file else None
        return template if isinstance(template, str) else None
    return None


def render_text(
    tokenizer: PreTrainedTokenizerBase, problem: str, data: DataConfig, messages: Messages = ()
) -> str:
    """The model's input: the chat template around `messages`, or around the one that `data.template` makes of
    `problem`; or plain text.

    Plain text has an empty line between messages. No text of the row is read as a control token, but for a
    row of plain text that is a rendering itself, which gets no system message. Raises ConfigError as
    `template_of`, and if the template refuses the messages."""
    plain = PlainTexts(tokenizer, data)
    if not messages and not data.chat and plain.starts(problem):  # the user's own rendering
        return data.template.replace("{problem}", problem)
    problem, messages = plain(problem), plain(messages)
    opened = opening(problem, data, messages)
    if not data.chat:
        return "\n\n".join(str(message["content"]) for message in opened)

    def refused(reason: str) -> ConfigError:
        other = (
            "set data.chat: false" if data.system is None else "set data.system: null, or data.chat: false"
        )
        if messages:
            other = f"change the messages of the row ({problem!r:.60}), or {other}"
        return ConfigError(
            f"the chat template of {tokenizer.name_or_path} refuses the prompt: {reason[:300]}: {other}"
        )

    return templated(tokenizer, opened, data, refused)


def opening(problem: str, data: DataConfig, messages: Messages = ()) -> list[dict[str, object]]:
    """The messages of a prompt. A system message of the row takes the place of `data.system`."""
    # Not str.format: problems and templates contain LaTeX braces.
    user: dict[str, object] = {"role": "user", "content": data.template.replace("{problem}", problem)}
    opened = [dict(message) for message in messages] or [user]
    if messages:
        opened[last_of_user(messages)].update(user)
    if data.system is None or any(message["role"] in ("system", "developer") for message in opened):
        return opened
    return [{"role": "system", "content": data.system}, *opened]


def render(
    tokenizer: PreTrainedTokenizerBase, problem: str, data: DataConfig, messages: Messages = ()
) -> Tokens:
    """The prompt's tokens (L,) int32. A chat template writes its begin-of-text token; plain text gets the
    tokenizer's, if it has one and the text does not begin with it."""
    return _encode(tokenizer, render_text(tokenizer, problem, data, messages), data)


def refuse_unknown(
    tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int] | Tokens, rows: int, where: str
) -> None:
    """Raise ConfigError, with `where`, for a token beyond the model's `rows` of embeddings: an engine reads
    it as another or fails, and the learner cannot train on it."""
    ids = np.asarray(tokens)
    if len(beyond := ids[ids >= rows]):
        token = int(beyond[0])
        raise ConfigError(
            f"{where} holds {tokenizer.convert_ids_to_tokens(token)!r}, token {token}, and the model has "
            f"{rows} (vocab_size in {tokenizer.name_or_path}/config.json): remove it from the row, the "
            "template, rollout.stop or the tokenizer, or use a model that has a row for it (transformers' "
            "resize_token_embeddings)"
        )


def prompt_of(row: Row) -> str:
    """`rows.jsonl:3: the prompt ('What is …')`, for errors."""
    return f"{row.location}: the prompt ({row.problem!r:.60})"


def make_prompt(
    tokenizer: PreTrainedTokenizerBase,
    index: int,
    row: Row,
    data: DataConfig,
    source: str = "",
    reads_row: bool = False,
) -> Prompt:
    """Row `row` of data source `source` as prompt `index`; `reads_row` as in `Prompt`."""
    text = render_text(tokenizer, row.problem, data, row.messages)
    tokens = _encode(tokenizer, text, data)
    return Prompt(
        index,
        row.problem,
        row.answer,
        tokens,
        prefill(text),
        row.columns,
        source,
        reads_row or TASK in row.columns,
        row.messages,
    )


def _encode(tokenizer: PreTrainedTokenizerBase, text: str, data: DataConfig) -> Tokens:
    ids = tokenizer.encode(text, add_special_tokens=False)
    if not data.chat and ids[:1] != begin_tokens(tokenizer)[:1]:
        ids = tokenizer.encode(text)
    return np.asarray(ids, dtype=np.int32)


def begin_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens that the tokenizer adds to an empty text."""
    return list(tokenizer.encode(""))


def fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """16 hex digits, equal for two tokenizers if and only if all tokens have the same ids.

    Covers the vocabulary with added tokens and the begin, end and padding tokens, but not the chat template,
    which does not change the meaning of a token."""
    ends = [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id]
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    content = json.dumps([ends, vocabulary], ensure_ascii=True, separators=(",", ":"))
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
