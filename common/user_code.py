"""Functions of users, which the configuration names as `package.module:function`; of a reward also as
`package.module:function[part]`, one of the named numbers that it returns."""

import importlib
import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from numbers import Real
from typing import Any, TypeGuard

from hora_rl.common.errors import ConfigError, Unavailable, any_error_as, one_line

OWN = re.compile(r"[^\s:\[\]]+:[^\s:\[\]]+(\[[^\[\]]+\])?")


def is_user_function(name: str) -> bool:
    return ":" in name


def load_object(key: str, name: str, others: str = "") -> object:
    """The object `name` for configuration key `key`; errors list `others` as valid. Raises ConfigError."""
    module, _, attribute = name.partition(":")

    def unusable(reason: str) -> ConfigError:
        short = one_line(reason)
        return ConfigError(f"{key}: cannot load {name!r}: {short}; write {others}package.module:function")

    with any_error_as(unusable):  # a module may raise anything when it is imported
        result: object = getattr(importlib.import_module(module), attribute)
    return result


def load_function(key: str, name: str, others: str = "") -> Callable[..., Any]:
    """`load_object` of a function. Raises ConfigError."""
    function = load_object(key, name, others)
    if not callable(function):
        raise ConfigError(f"{key}: {name!r} is a {type(function).__name__}, not a function")
    return function


def failures_named(what: str, where: str = "") -> AbstractContextManager[None]:
    """Raise every error of the block as a ValueError that names the function (`what`) and its input
    (`where`). Unavailable passes through: it asks the run to wait."""
    return any_error_as(lambda reason: ValueError(f"{what} raised {reason}{where}"), but=Unavailable)


@contextmanager
def working_folder() -> Iterator[None]:
    """Also import from the folder in which `hora` was started, last, as Ray's workers do."""
    before = list(sys.path)
    sys.path.append(os.getcwd())
    try:
        yield
    finally:
        sys.path[:] = before


def is_finite(value: object) -> TypeGuard[float]:
    """Whether a value that a user's code returned is a number with a finite float."""
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # 10**400
        return False


def function_of(name: str) -> str:
    """`package.module:function`, without a part."""
    return name.partition("[")[0]
