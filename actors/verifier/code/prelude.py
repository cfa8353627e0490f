"""Names that programs with functions or methods may use without an import, as on LeetCode. They are added to
the built-in names, so a test that calls one that the program does not define finds nothing.

Runs in the sandbox: standard library only, Python 3.9 or later."""

from __future__ import annotations

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
import random
import re
import statistics
import string
import sys
import typing
from typing import Any

MODULES = (
    *(bisect, collections, copy, datetime, functools, heapq, itertools, json, math, operator, random, re),
    *(statistics, string, sys, typing),
)
WHOLE = (typing, collections, functools, heapq, bisect, itertools, math)
"""Modules whose public names are there too. Of one name the last counts, and a module before all."""


def provide() -> None:
    """Add the names to those built in. In the process of one program, which ends with it."""
    names: dict[str, Any] = {}
    for module in WHOLE:
        public = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
        names.update({name: getattr(module, name) for name in public})
    names.update({module.__name__: module for module in MODULES})
    for name, value in names.items():
        if not hasattr(builtins, name):
            setattr(builtins, name, value)
