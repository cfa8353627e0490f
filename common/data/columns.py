"""Values of a row's columns by path. Dots reach into nested columns, also those written as JSON text, and
into lists by number: `reward_model.ground_truth`, `messages.0.content`."""

import json
from collections.abc import Iterator, Mapping


def reach(row: object, path: str) -> object:
    """The value at `path`. A column whose name has dots is taken before a nested one. Raises KeyError."""
    if isinstance(row, str) and row.lstrip().startswith(("{", "[")):
        try:
            row = json.loads(row)
        except (RecursionError, ValueError):
            raise KeyError(path) from None
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


def names(row: Mapping[str, object]) -> Iterator[str]:
    """The columns of a row, and those nested in them."""
    for name, inner in row.items():
        yield name
        if isinstance(inner, Mapping):
            yield from (f"{name}.{nested}" for nested in inner)
