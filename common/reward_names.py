"""Names of rewards: `accuracy`, `package.module:function`, and `package.module:function[part]` for one of the
named numbers that a function returns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

OWN = re.compile(r"[^\s:\[\]]+:[^\s:\[\]]+(\[[^\[\]]+\])?")
Value = float | dict[str, float]
"""What a function of a user gives a completion: a number, or numbers by name."""


def function_of(name: str) -> str:
    """`package.module:function` of a name with or without a part."""
    return name.partition("[")[0]


def part_of(name: str) -> str | None:
    """The part in brackets; None where the function's number itself is meant."""
    _, bracket, rest = name.partition("[")
    return rest.removesuffix("]") if bracket else None


def taken(names: Sequence[str], value: Value, place: str) -> dict[str, float]:
    """Of `value`, which one function returned, the rewards of these names. `place` names the row.

    Raises ValueError where a name and what was returned do not fit: nothing that was asked for may be
    missing.
    """
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
