"""A row of a data set: its columns by path, and its prompt as a text or as the messages of a conversation.

Dots reach into nested columns, also those written as text, and into lists by number:
`reward_model.ground_truth`, `messages.0.content`. Messages are those of TRL, verl and OpenRLHF:

"prompt": "2+2?"
"prompt": [{"role": "system", "content": "Add."}, {"role": "user", "content": "2+2?"}]
"prompt": [{"role": "user", "content": [{"type": "text", "text": "2+2?"}]}]      or the text of such a list"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

DEPTH, ITEMS = 4, 2
"""How far `names` looks into a column, and how many items of a list it names."""
Message = Mapping[str, object]
"""`role` and `content`, both texts, and what else the row has for the template (`tool_calls`)."""
Messages = tuple[Message, ...]

ROLES = ("system", "developer", "user", "assistant", "tool")
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""Valid in JSON escapes but in no text: tokenizers and terminals refuse it."""
_WRITTEN = re.compile(r"""\s*\[\s*\{\s*['"](role|content)['"]\s*:""")
"""The beginning of messages in a cell of a CSV file, as JSON or as Python writes them."""
Json = Any
"""A JSON value: None, bool, number, text, a list or an object."""


@dataclass(frozen=True, slots=True)
class Row:
    """`index` numbers usable rows from 0 and names the prompt in the run; `columns` is the original row.
    `messages` is the conversation up to the policy's turn, if the row has one; `problem` its last turn of the
    user. `location` is `file:line` or `name[split] row`, counted from 1."""

    index: int
    problem: str
    answer: Json
    columns: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)
    messages: Messages = ()
    location: str = field(default="", compare=False)


def written(text: str) -> object:
    """The value of a text, as JSON or as Python writes it in a cell of a CSV file. Raises ValueError."""
    for parse in (json.loads, ast.literal_eval):
        with suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):  # `{{1}}`: TypeError
            return parse(text)
    raise ValueError(f"is neither JSON nor a Python value: {text!r:.60}")


def reach(row: object, path: str) -> object:
    """The value at `path`. A column whose name has dots is taken before a nested one. Raises KeyError."""
    row = _opened(row)
    if isinstance(row, Mapping) and path in row:
        return row[path]
    head, dot, rest = path.partition(".")
    if isinstance(row, list) and head.isdecimal() and int(head) < len(row):
        inner = row[int(head)]
    elif isinstance(row, Mapping) and dot and head in row:
        inner = row[head]
    else:
        raise KeyError(path)
    return reach(inner, rest) if dot else inner


def value(row: Mapping[str, object], path: str) -> object:
    """The value at `path`; None without one."""
    try:
        return reach(row, path)
    except KeyError:
        return None


def has(row: Mapping[str, object], path: str) -> bool:
    try:
        reach(row, path)
    except KeyError:
        return False
    return True


def names(value: object, depth: int = DEPTH) -> Iterator[str]:
    """The columns of a row and those nested in them, as paths: all that `reach` can name, within limits."""
    value, pairs = _opened(value), list[tuple[object, object]]()
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        pairs = list(enumerate(value[:ITEMS]))
    for name, inner in pairs if depth else ():
        yield str(name)
        yield from (f"{name}.{nested}" for nested in names(inner, depth - 1))


def _opened(value: object) -> object:
    """The mapping or list that a text holds; any other value as it is."""
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        with suppress(ValueError):
            return written(value.strip())
    return value


def read_prompt(value: object) -> tuple[str, Messages]:
    """The problem, which views show and rewards get, and the messages, none for a text. The problem of
    messages is the last turn of the user. Raises ValueError with the defect of the value."""
    if isinstance(value, str) and _WRITTEN.match(value):
        try:
            value = written(value.strip())
        except ValueError:
            raise ValueError(f"begins as messages and is no list of them: {value!r:.60}") from None
    if isinstance(value, str):
        messages: Messages = ()
        problem = value
    else:
        messages = tuple(_message(message) for message in _listed(value))
        problem = str(messages[last_of_user(messages)]["content"])
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
    indices = [index for index, message in enumerate(messages) if message["role"] == "user"]
    if not indices:
        raise ValueError("has no message of the user")
    return indices[-1]


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
    fields = {name: item for name, item in value.items() if item is not None}
    return {**fields, "content": _content(content)}


def _content(content: object) -> str:
    """The text of a message. Its parts are joined as templates write them: without a space."""
    if isinstance(content, str):
        return content
    parts = _listed(content) if content is not None else []
    texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type") == "text"]
    if not parts or len(texts) < len(parts) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"has a message whose content is not text: {content!r:.60}")
    return "".join(map(str, texts))
