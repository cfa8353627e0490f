"""The process of the program, in the sandbox: executes the program, then serves the calls of the tests.

The program may change anything in this process, but affects only itself. Expected values and verdict stay in
other processes.
"""

import bisect
import builtins
import collections
import copy
import datetime
import functools
import heapq
import itertools
import json
import math
import operator
import os
import random
import re
import statistics
import string
import sys
import textwrap
import typing
from types import ModuleType
from typing import Any

from hora_rl.actors.verifier.code.values import OPERATIONS, Caught, decode, encode, line

NAME = "program"
"""The program's `__name__`, so that code for `__main__` does not run."""
ASK, TELL = 3, 4
MESSAGE = 500
NAMED_MODULES = (
    *(bisect, collections, copy, datetime, functools, heapq, itertools, json, math, operator, random, re),
    *(statistics, string, sys, typing),
)
OPENED_MODULES = (typing, collections, functools, heapq, bisect, itertools, math)
"""Modules that programs may use without an import, as on LeetCode, and those whose public names are there
too. Of one name the last counts, and a module before all."""


def main() -> None:
    """Read `[source, text before it, entry]`, then calls `[number, what, target, name, arguments, keywords]`,
    one per line."""
    with os.fdopen(ASK, "rb") as ask, os.fdopen(TELL, "wb", buffering=0) as tell:
        module = sys.modules[NAME] = ModuleType(NAME)
        _add_names()
        for source in _sources(*json.loads(ask.readline())):
            exec(compile(source, "program.py", "exec"), module.__dict__)
        objects: list[Any] = []
        for message in ask:
            tell.write(line(_answer(json.loads(message), module.__dict__, objects)))


def _add_names() -> None:
    """Add the modules' names to the built-in ones: tests find only what the program defines."""
    names: dict[str, Any] = {}
    for module in OPENED_MODULES:
        public = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
        names.update({name: getattr(module, name) for name in public})
    names.update({module.__name__: module for module in NAMED_MODULES})
    for name, value in names.items():
        if not hasattr(builtins, name):
            setattr(builtins, name, value)


def _sources(program: str, before: str, entry: str) -> list[str]:
    """The texts to execute. A program without the function that `before` begins is that function's body."""
    name = entry.rpartition("().")[2]
    begins = rf"^(?:async[ ]+)?def[ ]+{name}\b"
    if not before or not re.search(begins, before, re.MULTILINE):
        return [before, program]
    if re.search(begins, program, re.MULTILINE):
        try:
            compile(before, "program.py", "exec")
        except SyntaxError:  # a function without a body: its own docstring is one
            return [program]
        return [before, program]
    margin = re.match(r"[ \t]*", before.rstrip().rpartition("\n")[2]) if before.strip() else None
    return [f"{before.rstrip()}\n{textwrap.indent(program, (margin and margin.group()) or '    ')}"]


def _called(names: dict[str, Any], target: str) -> Any:
    """What the tests call: a name, `Solution().name`, or a method of Solution for a name that is not there;
    for "" the one function or method that no other calls. Raises KeyError."""
    owner, _, name = target.rpartition("().")
    name = name or _only(names)
    if owner in names:
        return getattr(names[owner](), name)
    if name not in names and hasattr(names.get("Solution"), name):
        return getattr(names["Solution"](), name)
    return names[name]


def _only(names: dict[str, object]) -> str:
    """The last public method of Solution, else function, that no other one mentions."""
    members = vars(names["Solution"]) if isinstance(names.get("Solution"), type) else names
    functions = {
        n: getattr(v, "__wrapped__", v) for n, v in members.items() if getattr(v, "__module__", "") == NAME
    }
    codes = {n: v.__code__ for n, v in functions.items() if hasattr(v, "__code__") and not n.startswith("_")}
    mentioned = {name for n, code in codes.items() for name in code.co_names if name != n}
    return ([n for n in codes if n not in mentioned] or list(codes) or [""])[-1]


def _answer(message: list, names: dict[str, Any], objects: list[Any]) -> list:
    number, what, target, name, arguments, keywords = message

    def keep(value: object) -> int:
        objects.append(value)
        return len(objects) - 1

    with Caught() as caught:
        called = _called(names, target) if isinstance(target, str) else objects[target]
        if name in OPERATIONS:
            called = functools.partial(OPERATIONS[name], called)
        elif name is not None:
            called = getattr(called, name)
        if what == "get":
            return [number, "value", encode(called, keep), []]
        values = [decode(item, objects.__getitem__) for item in arguments]
        value = called(*values, **{k: decode(item, objects.__getitem__) for k, item in keywords.items()})
        # Arguments are returned too: the program may have changed a list in place.
        return [number, "value", encode(value, keep), [encode(item, keep) for item in values]]
    # An error of the program: the tests decide what it means.
    return [number, "error", type(caught.error).__name__, str(caught.error)[:MESSAGE]]
