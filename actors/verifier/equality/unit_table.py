"""Convertible units, scale words (`units.yaml`), and products of units. No parsing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from hora_rl.actors.verifier.equality.notation import table

_TABLE = table("units.yaml")

SCALES: dict[str, int] = {word: size for size, words in _TABLE["scales"].items() for word in words.split()}
"""Words that multiply the number and are never dropped."""

MORE_WORDS = frozenset(word for words in _TABLE["more"].values() for word in words.split())
"""Words after a number that are more than a unit: alternatives, comparisons, parts."""

MORE_IN = re.compile(
    "半|分之|以上|以下|以内|未満|未满|左右|より|または|および|ない|[或和与不非負负超余餘又至第多减加乘除]"
)
"""The same in Chinese and Japanese, anywhere in what follows a number."""

CURRENCIES: str = _TABLE["currencies"]
"""Codes of currencies."""


@dataclass(frozen=True)
class Unit:
    """A unit. `dimensions` is ordered (name, exponent) pairs; None for unknown words."""

    factor: Fraction
    dimensions: tuple[tuple[str, int], ...] | None

    def power(self, exponent: int) -> Unit:
        if self.dimensions is None:
            return self
        return Unit(self.factor**exponent, tuple((name, n * exponent) for name, n in self.dimensions))

    def times(self, other: Unit) -> Unit:
        if self.dimensions is None or other.dimensions is None:
            return UNKNOWN
        exponents = dict(self.dimensions)
        for name, n in other.dimensions:
            exponents[name] = exponents.get(name, 0) + n
        return Unit(self.factor * other.factor, tuple(sorted((k, n) for k, n in exponents.items() if n)))


UNKNOWN = Unit(Fraction(1), None)
ONE = Unit(Fraction(1), ())


def _table() -> dict[str, Unit]:
    table: dict[str, Unit] = {}
    for dimension, units in _TABLE["units"].items():
        base = ("length", 3) if dimension == "volume" else (dimension, 1)
        for size, names in units.items():
            table |= dict.fromkeys(names.split(), Unit(Fraction(size), (base,)))
    codes = {code: Unit(Fraction(1), ((code, 1),)) for code in CURRENCIES.split()}
    table = codes | table
    per_hour = table["hour"].power(-1)
    table["mph"] = table["mile"].times(per_hour)
    table |= dict.fromkeys(("kmph", "kmh", "kph"), table["km"].times(per_hour))
    return table


TABLE = _table()
PERCENT = TABLE["percent"]


SIGNS = "$¢-¥\u058f\u060b\u09f2\u09f3\u0e3f\u17db\u20a0-\u20c0\ufdfc"
"""Currency signs of all languages, for a regular expression's class."""
_SIGN = re.compile(rf"[a-z]{{0,3}}[{SIGNS}]")


def unit_named(word: str) -> Unit | None:
    """The unit of a word in any number and case, or of any currency sign; None if unknown."""
    word = word.lower().rstrip(".")
    singular = word.removesuffix("s") if len(word) > 2 else word
    known = TABLE.get(word) or TABLE.get(singular)
    return known or (Unit(Fraction(1), ((word, 1),)) if _SIGN.fullmatch(word) else None)


def without_scales(word: str) -> list[str]:
    """The word as scales and the rest, as written in Chinese: `万元` -> `万`, `元`. `千克` is a unit."""
    scales = []
    while len(word) > 1 and word not in TABLE and word[0] in SCALES:
        scales.append(word[0])
        word = word[1:]
    return [*scales, word]
