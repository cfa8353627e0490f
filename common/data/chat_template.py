"""The chat template of a data set and its settings (`data.chat_template`, `data.chat_template_kwargs`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from hora_rl.common.config import DataConfig
from hora_rl.common.errors import ConfigError, one_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Refused = Callable[[str], Exception]
"""Makes the error from the template's reason."""
PART = "{'type': 'text'"
"""In a text where a template wrote the list of parts itself."""
OURS = {"messages", "add_generation_prompt", "continue_final_message", "raise_exception", "strftime_now"}
"""Variables of a template that are not settings."""


def template_of(tokenizer: PreTrainedTokenizerBase, data: DataConfig) -> str:
    """The source of the chat template. Raises ConfigError if `data` needs one and there is none, or sets what
    the template never reads."""
    if data.chat_template is None and not tokenizer.chat_template:
        raise ConfigError(
            f"the tokenizer of {tokenizer.name_or_path} has no chat template: set data.chat: false to use "
            "plain text, name a Jinja file in data.chat_template, or use a model that has one"
        )
    from jinja2 import TemplateError

    named = "data.chat_template" if data.chat_template else f"the chat template of {tokenizer.name_or_path}"
    try:
        source = tokenizer.get_chat_template(data.chat_template, data.chat_template_kwargs.get("tools"))
        known, shown = _variables(source)
    except (TemplateError, ValueError) as error:
        raise ConfigError(f"{named} cannot be used: {one_line(error, 300)}") from None
    if unread := [name for name in data.chat_template_kwargs if name not in known]:
        there = f"it reads {', '.join(shown)}" if shown else "it has no settings"
        raise ConfigError(
            f"data.chat_template_kwargs.{unread[0]}: {named} never reads it ({there}): correct or remove it"
        )
    return source


def settings_of(source: str) -> tuple[str, ...]:
    """Settings of the template `source`, sorted: variables that it reads and does not make itself."""
    return _variables(source)[1]


@lru_cache(maxsize=16)
def _variables(source: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """Variables that may come from outside, and of these the settings. One that is made in one branch and
    read in another is a setting only if the template has a default for it."""
    from jinja2 import meta, nodes
    from transformers.utils.chat_template_utils import _compile_jinja_template  # with its extensions

    tree = _compile_jinja_template(source).environment.parse(source)
    outside = {name for name in meta.find_undeclared_variables(tree) - OURS if not name.endswith("_token")}
    made = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "store"}
    defaults = [test.node for test in tree.find_all(nodes.Test) if test.name in ("defined", "undefined")]
    defaults += [
        filtered.node for filtered in tree.find_all(nodes.Filter) if filtered.name in ("default", "d")
    ]
    defaulted = {node.name for node in defaults if isinstance(node, nodes.Name)}
    return frozenset(outside), tuple(sorted(outside - (made - defaulted)))


def templated(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, object]],
    data: DataConfig,
    refused: Refused,
    *,
    prompt: bool = True,
) -> str:
    """The text of a conversation by the template and settings of `data`, with `prompt` up to the assistant's
    next turn. A template that reads the parts of a message alone, as those of models with images do, gets
    them. Raises `refused`, made of the reason, if the template does not take the messages, and ConfigError as
    `template_of`."""
    from jinja2 import TemplateError

    faults = TemplateError, TypeError, KeyError, ValueError, ArithmeticError, AttributeError
    source = template_of(tokenizer, data)

    def written(contents: Sequence[object]) -> str:
        pairs = zip(messages, contents, strict=True)
        return str(
            tokenizer.apply_chat_template(
                [{**message, "content": content} for message, content in pairs],
                chat_template=source,
                add_generation_prompt=prompt,
                tokenize=False,
                **data.chat_template_kwargs,
            )
        )

    texts = [str(message["content"]) for message in messages]
    questions = [
        text.strip() for text, message in zip(texts, messages, strict=True) if message["role"] == "user"
    ]
    text, reason = None, ""
    try:
        text = written(texts)
    except faults as error:
        reason = " ".join(str(error).split())
    if questions and (text is None or questions[-1] not in text):
        with suppress(*faults):
            parts = written([[{"type": "text", "text": text}] for text in texts])
            if questions[-1] in parts and PART not in parts:
                return parts
    if text is None:
        raise refused(reason)
    return text
