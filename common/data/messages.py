"""A row's prompt: a text, or the messages of a conversation as TRL, verl and OpenRLHF have them.

"prompt": "2+2?"
"prompt": [{"role": "system", "content": "Add."}, {"role": "user", "content": "2+2?"}]
"prompt": [{"role": "user", "content": [{"type": "text", "text": "2+2?"}]}]      or the text of such a list
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from hora_rl.common.data.columns import written

Message = Mapping[str, Any]
"""`role` and `content`, both texts, and what else the row has for the template (`tool_calls`)."""
Messages = tuple[Message, ...]

ROLES = ("system", "developer", "user", "assistant", "tool")
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""Valid in JSON escapes but in no text: tokenizers and terminals refuse it."""
_WRITTEN = re.compile(r"""\s*\[\s*\{\s*['"](role|content)['"]\s*:""")
"""The beginning of messages in a cell of a CSV file, as JSON or as Python writes them."""


def read_prompt(value: object) -> tuple[str, Messages]:
    """The problem, which views show and rewards get, and the messages, none for a text. The problem of
    messages is the last turn of the user. Raises ValueError with the defect of the value."""
    value = _parsed(value) if isinstance(value, str) and _WRITTEN.match(value) else value
    if isinstance(value, str):
        messages: Messages = ()
        problem = value
    else:
        messages = tuple(_message(message) for message in _listed(value))
        problem = messages[last_of_user(messages)]["content"]
        if messages[-1]["role"] == "assistant":
            raise ValueError("ends with a turn of the assistant, whose next turn is to be sampled")
    if not problem.strip():
        raise ValueError(f"is not a text: {value!r:.60}")
    if half := LONE_SURROGATE.search(
        problem if not messages else json.dumps(messages, ensure_ascii=False, default=str)
    ):
        raise ValueError(f"holds U+{ord(half[0]):X}, half of a character")
    return problem, messages


def last_of_user(messages: Messages) -> int:
    """Place of the last turn of the user. Raises ValueError without one."""
    places = [place for place, message in enumerate(messages) if message["role"] == "user"]
    if not places:
        raise ValueError("has no message of the user")
    return places[-1]


def _parsed(text: str) -> object:
    try:
        return written(text.strip())
    except ValueError:
        raise ValueError(f"begins as messages and is no list of them: {text!r:.60}") from None


def _listed(value: object) -> list[object]:
    """The messages of a list, an array, or columns `role` and `content` of equal length."""
    if hasattr(value, "tolist"):  # numpy
        value = value.tolist()
    if isinstance(value, Mapping):  # the `datasets` library turns a sequence of structs into columns
        columns = {name: _listed(column) for name, column in value.items() if not isinstance(column, str)}
        if columns.keys() != value.keys() or {"role", "content"} - columns.keys():
            raise ValueError(f"is not a text, nor messages of role and content: {value!r:.60}")
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"is not a text, nor messages of role and content: {value!r:.60}")
    return list(value)


def _message(value: object) -> Message:
    if not isinstance(value, Mapping) or value.get("role") not in ROLES:
        raise ValueError(f"has a message without a role of {', '.join(ROLES)}: {value!r:.60}")
    content = value.get("content")
    if content is None and value.get("tool_calls") is not None:
        content = ""
    given = {name: item for name, item in value.items() if item is not None}
    return {**given, "content": _content(content)}


def _content(content: object) -> str:
    """The text of a message. Its parts are joined as templates write them: without a space."""
    if isinstance(content, str):
        return content
    parts = _listed(content) if content is not None else []
    texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type") == "text"]
    if not parts or len(texts) < len(parts) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"has a message whose content is not text: {content!r:.60}")
    return "".join(map(str, texts))
