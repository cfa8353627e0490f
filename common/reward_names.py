"""Names of rewards: `accuracy`, `package.module:function`, and `package.module:function[part]` for one of the
named numbers a function returns."""

import math
import re
from collections.abc import Mapping, Sequence
from numbers import Real

OWN = re.compile(r"[^\s:\[\]]+:[^\s:\[\]]+(\[[^\[\]]+\])?")
Value = float | dict[str, float]
"""Return value of a user's reward for one completion: a number, or numbers by name."""


def is_finite(value: object) -> bool:
    """Whether a value that a user's code returned is a number with a finite float."""
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # 10**400
        return False


def function_of(name: str) -> str:
    """`package.module:function`, without a part."""
    return name.partition("[")[0]


def part_of(name: str) -> str | None:
    """The part in brackets; None without one."""
    _, bracket, rest = name.partition("[")
    return rest.removesuffix("]") if bracket else None


def taken(names: Sequence[str], value: Value, place: str) -> dict[str, float]:
    """The rewards `names` from `value`, the return value of one function. `place` names the row.

    Raises ValueError if a name does not match the value."""
    return {name: _one(name, value, place) for name in names}


def _one(name: str, value: Value, place: str) -> float:
    part, function = part_of(name), function_of(name)
    if isinstance(value, Mapping):
        if part in value:
            return value[part]
        there = ", ".join(f"{function}[{key}]" for key in value)
        raise ValueError(
            f"reward {function!r} returned named numbers without {name!r} ({place}): name {there} in "
            "reward.weights or reward.success"
        )
    if part is not None:
        raise ValueError(
            f"reward {function!r} returned {value:g}, not numbers by name ({place}): it has no part {part!r}"
        )
    return value
