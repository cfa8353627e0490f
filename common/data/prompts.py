"""Renders problems to tokens, and loads and fingerprints the tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hora_rl.common.config import Data
from hora_rl.common.data.datasets import Row
from hora_rl.common.data.gym import TASK
from hora_rl.common.errors import ConfigError, any_error_as, one_line
from hora_rl.common.thoughts import prefill
from hora_rl.common.types import Prompt, Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(path: str, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer of a Hugging Face folder or hub name.

    Raises ConfigError if the folder is missing, has no tokenizer, or needs remote code."""
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
    return tokenizer


def check_template(tokenizer: PreTrainedTokenizerBase, data: Data) -> None:
    """Raise ConfigError if `data` needs a chat template and the tokenizer has none."""
    if data.chat and not tokenizer.chat_template:
        raise ConfigError(
            f"the tokenizer of {tokenizer.name_or_path} has no chat template: set data.chat: false to use "
            "plain text, or use a model that has one"
        )


def render_text(tokenizer: PreTrainedTokenizerBase, problem: str, data: Data) -> str:
    """The model's input: the chat template around `data.template`, or plain text.

    Plain text puts `data.system` before the problem, with an empty line between. Raises ConfigError as
    `check_template`, and if the template refuses the messages."""
    if not data.chat:
        return "\n\n".join(message["content"] for message in opening(problem, data))
    check_template(tokenizer, data)

    def refused(reason: str) -> ConfigError:
        other = "data.chat: false" if data.system is None else "data.system: null, or data.chat: false"
        return ConfigError(
            f"the chat template of {tokenizer.name_or_path} refuses the prompt: {reason[:300]}: set {other}"
        )

    return templated(tokenizer, opening(problem, data), refused)


def templated(
    tokenizer: PreTrainedTokenizerBase,
    messages: list[dict[str, Any]],
    refused: Callable[[str], Exception],
) -> str:
    """The text of a conversation up to the assistant's next turn. Raises `refused`, made of the reason, if
    the chat template does not take the messages."""
    from jinja2 import TemplateError

    try:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except (TemplateError, TypeError, KeyError, ValueError) as error:
        raise refused(" ".join(str(error).split())) from None
    return str(text)


def opening(problem: str, data: Data) -> list[dict[str, str]]:
    """The messages from which a prompt is rendered."""
    # Not str.format: problems and templates contain LaTeX braces.
    user = {"role": "user", "content": data.template.replace("{problem}", problem)}
    return [user] if data.system is None else [{"role": "system", "content": data.system}, user]


def render(tokenizer: PreTrainedTokenizerBase, problem: str, data: Data) -> Tokens:
    """The prompt's tokens (L,) int32. A chat template writes its begin-of-text token; plain text gets the
    tokenizer's, if it has one."""
    return _encode(tokenizer, render_text(tokenizer, problem, data), data)


def refuse_unknown(
    tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int] | Tokens, rows: int, place: str
) -> None:
    """Raise ConfigError, with `place`, for a token beyond the model's `rows` of embeddings: an engine reads
    it as another or fails, and the learner cannot train on it."""
    ids = np.asarray(tokens)
    if len(beyond := ids[ids >= rows]):
        token = int(beyond[0])
        raise ConfigError(
            f"{place} holds {tokenizer.convert_ids_to_tokens(token)!r}, token {token}, and the model has "
            f"{rows} (vocab_size in {tokenizer.name_or_path}/config.json): remove it from the row, the "
            "template, rollout.stop or the tokenizer, or use a model that has a row for it (transformers' "
            "resize_token_embeddings)"
        )


def prompt_of(dataset: str, row: Row) -> str:
    """`rows.jsonl: the prompt of row 3 ('What is …')`, for errors."""
    return f"{dataset}: the prompt of row {row.index} ({row.problem!r:.60})"


def make_prompt(
    tokenizer: PreTrainedTokenizerBase,
    index: int,
    row: Row,
    data: Data,
    source: str = "",
    reads_row: bool = False,
) -> Prompt:
    """Row `row` of data source `source` as prompt `index`; `reads_row` as in `Prompt`."""
    text = render_text(tokenizer, row.problem, data)
    tokens = _encode(tokenizer, text, data)
    reads_row = reads_row or TASK in row.columns
    return Prompt(index, row.problem, row.answer, tokens, prefill(text), row.columns, source, reads_row)


def _encode(tokenizer: PreTrainedTokenizerBase, text: str, data: Data) -> Tokens:
    return np.asarray(tokenizer.encode(text, add_special_tokens=not data.chat), dtype=np.int32)


def fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """16 hex digits, equal for two tokenizers if and only if all tokens have the same ids.

    Covers the vocabulary with added tokens and the begin, end and padding tokens, but not the chat template,
    which does not change the meaning of a token."""
    ends = [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id]
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    content = json.dumps([ends, vocabulary], ensure_ascii=True, separators=(",", ":"))
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
