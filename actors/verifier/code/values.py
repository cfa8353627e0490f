"""Values between the process of the tests and that of the program: JSON with tags, of built-in types alone.

What arrives was made anew here, so no `__eq__`, no subclass and no other code of the sender's comes with it.
JSON alone would make lists of tuples, texts of keys, and floats of large numbers. Standard library only, of
any Python from 3.9: this runs in the sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

DEPTH = 60
LONGEST = 4 << 20
"""Bytes of one message. A reply is read no further."""
EXACT = 2**53
COLLECTIONS: dict[str, Callable[[list], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
Keep = Callable[[Any], int]


class Caught:
    """`with Caught() as caught`: an error of the block ends it and is kept. For code of a user, in which
    anything may fail."""

    error: Exception | None = None

    def __enter__(self) -> Caught:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Exception):
            self.error = error
        return self.error is not None


class Unsendable(TypeError):
    """A value that has no form on the wire."""


def encode(value: Any, keep: Keep | None = None, depth: int = 0) -> Any:
    """Plain JSON of a value. What has none is kept by the sender, who gives its number; without `keep` raises
    Unsendable."""
    kind = type(value)  # exactly: a subclass of int may say that it equals everything
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
        raise Unsendable("nested too deeply")
    if kind is list:
        return [encode(one, keep, depth + 1) for one in value]
    if kind is dict:
        pairs = value.items()
        return {"dict": [[encode(k, keep, depth + 1), encode(v, keep, depth + 1)] for k, v in pairs]}
    if kind.__name__ in COLLECTIONS and kind is COLLECTIONS[kind.__name__]:
        return {kind.__name__: [encode(one, keep, depth + 1) for one in value]}
    if keep is None:
        raise Unsendable(f"a {kind.__name__} cannot be sent")
    return {"kept": keep(value)}


def decode(value: Any, kept: Callable[[int], Any]) -> Any:
    """The value of plain JSON; `kept` finds or stands for what was kept under a number. Raises ValueError,
    TypeError, KeyError and the like where it is none that `encode` made."""
    kind = type(value)
    if kind is list:
        return [decode(one, kept) for one in value]
    if kind is not dict:
        return value
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
        return {decode(k, kept): decode(v, kept) for k, v in content}
    return COLLECTIONS[tag](decode(content, kept))


def line(message: Any) -> bytes:
    """One message as it is sent."""
    return json.dumps(message).encode() + b"\n"
