"""The wire format between the processes of tests and program: tagged JSON of built-in types only.

The receiver rebuilds values, so they carry no `__eq__`, subclass or other code of the sender. Plain JSON
would turn tuples into lists, keys into strings and large numbers into floats. Runs in the sandbox: standard
library only, Python 3.9 or later.
"""

from __future__ import annotations

import json
import operator
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

DEPTH = 60
LONGEST = 4 << 20
"""Byte limit of one message."""
EXACT = 2**53
COLLECTIONS: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
    "Counter": Counter,
    "OrderedDict": OrderedDict,
}
OPERATIONS: dict[str, Callable[..., Any]] = {
    "__len__": len,
    "__getitem__": operator.getitem,
    "__iter__": iter,
    "__next__": next,
    "__str__": str,
    "__repr__": repr,
    "__bool__": bool,
    "__setattr__": setattr,
    "__setitem__": operator.setitem,
}
"""Operations of the tests on an object of the program, which need not define a method of that name. `__eq__`
and `__contains__` are excluded: an object that equals everything would pass every test."""
Keep = Callable[[Any], int]


class Caught:
    """Catches an error of the block and keeps it as `error`: for user code, which may raise anything."""

    error: Exception | None = None

    def __enter__(self) -> Caught:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Exception):
            self.error = error
        return self.error is not None


class Unsendable(TypeError):
    """A value that cannot be encoded."""


class TooDeep(Unsendable):
    """A value nested more than DEPTH times."""


def encode(value: Any, keep: Keep, depth: int = 0) -> Any:
    """A value as plain JSON. Other objects stay with the sender, under the number that `keep` returns."""
    kind = type(value)  # exact type: a subclass of int may equal everything
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if -EXACT < value < EXACT else {"int": hex(value)}
    if kind is float:
        return {"float": value.hex()}
    if kind is complex:
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if kind is bytes:
        return {"bytes": value.hex()}
    if depth > DEPTH:
        raise TooDeep("nested too deeply")
    if kind is list:
        return [encode(item, keep, depth + 1) for item in value]
    if kind is dict or kind is defaultdict:
        pairs = dict.items(value)
        return {"dict": [[encode(k, keep, depth + 1), encode(v, keep, depth + 1)] for k, v in pairs]}
    if kind is Counter or kind is OrderedDict:
        return {kind.__name__: encode(dict(value), keep, depth)}
    if kind.__name__ in COLLECTIONS and kind is COLLECTIONS[kind.__name__]:
        return {kind.__name__: [encode(item, keep, depth + 1) for item in value]}
    return {"kept": keep(value)}


def decode(value: Any, kept: Callable[[int], Any], depth: int = 0) -> Any:
    """The value of plain JSON. `kept` returns the object, or a proxy, for a number. Raises ValueError,
    TypeError, KeyError and similar errors for invalid JSON."""
    kind = type(value)
    if kind not in (list, dict):
        return value
    if depth > DEPTH + 1:  # one level more: numbers are objects too
        raise ValueError("nested too deeply")
    if kind is list:
        return [decode(item, kept, depth + 1) for item in value]
    ((tag, content),) = value.items()
    if tag == "int":
        return int(content, 16)
    if tag == "float":
        return float.fromhex(content)
    if tag == "complex":
        return complex(*map(float.fromhex, content))
    if tag == "bytes":
        return bytes.fromhex(content)
    if tag == "kept":
        return kept(int(content))
    if tag == "dict":
        return {decode(k, kept, depth + 1): decode(v, kept, depth + 1) for k, v in content}
    return COLLECTIONS[tag](decode(content, kept, depth))


def as_json(value: Any) -> Any:
    """A value as LiveCodeBench compares results: a tuple is a list, and the keys of an object are texts."""
    if isinstance(value, (list, tuple, deque)):
        return [as_json(item) for item in value]
    if isinstance(value, dict):
        return {k if isinstance(k, str) else _key(k): as_json(v) for k, v in value.items()}
    return value


def _key(key: Any) -> Any:
    """As `json.dumps` writes a key; others as they are, which equal none."""
    plain = key is None or isinstance(key, (bool, int, float))
    return json.dumps(key) if plain else key


def line(message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"
