"""Values of a row's columns by path. Dots reach into nested columns, also those written as text, and into
lists by number: `reward_model.ground_truth`, `messages.0.content`."""

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

DEPTH, ITEMS = 4, 2
"""How far `names` looks into a column, and how many items of a list it names."""


def written(text: str) -> object:
    """The value of a text, as JSON or as Python writes it in a cell of a CSV file. Raises ValueError."""
    for parse in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return parse(text)
    raise ValueError(f"is neither JSON nor a Python value: {text!r:.60}")


def reach(row: object, path: str) -> object:
    """The value at `path`. A column whose name has dots is taken before a nested one. Raises KeyError."""
    row = _opened(row)
    if isinstance(row, Mapping) and path in row:
        return row[path]
    head, dot, rest = path.partition(".")
    if isinstance(row, list) and head.isdecimal() and int(head) < len(row):
        found = row[int(head)]
    elif isinstance(row, Mapping) and dot and head in row:
        found = row[head]
    else:
        raise KeyError(path)
    return reach(found, rest) if dot else found


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
