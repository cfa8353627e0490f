"""The process of the program, in the sandbox: executes the program, then serves the calls of the tests.

The program may change anything in this process, but affects only itself. Expected values and verdict stay in
other processes.
"""

import functools
import json
import os
import sys
from types import ModuleType
from typing import Any

from hora_rl.actors.verifier.code.values import OPERATIONS, Caught, decode, encode, line

NAME = "program"
"""The program's `__name__`, so that code for `__main__` does not run."""
ASK, TELL = 3, 4
MESSAGE = 500


def main() -> None:
    """Read the source, then calls `[number, what, target, name, arguments, keywords]`, one per line."""
    with os.fdopen(ASK, "rb") as ask, os.fdopen(TELL, "wb", buffering=0) as tell:
        module = sys.modules[NAME] = ModuleType(NAME)
        exec(compile(json.loads(ask.readline()), "program.py", "exec"), module.__dict__)
        objects: list[Any] = []
        for message in ask:
            tell.write(line(_answer(json.loads(message), module.__dict__, objects)))


def _answer(message: list, names: dict[str, Any], objects: list[Any]) -> list:
    number, what, target, name, arguments, keywords = message

    def keep(value: Any) -> int:
        objects.append(value)
        return len(objects) - 1

    with Caught() as caught:
        called = names[target] if isinstance(target, str) else objects[target]
        if name in OPERATIONS:
            called = functools.partial(OPERATIONS[name], called)
        elif name is not None:
            called = getattr(called, name)
        if what == "get":
            return [number, "value", encode(called, keep), []]
        values = [decode(one, objects.__getitem__) for one in arguments]
        value = called(*values, **{k: decode(one, objects.__getitem__) for k, one in keywords.items()})
        # Arguments are returned too: the program may have changed a list in place.
        return [number, "value", encode(value, keep), [encode(one, keep) for one in values]]
    # An error of the program: the tests decide what it means.
    return [number, "error", type(caught.error).__name__, str(caught.error)[:MESSAGE]]
