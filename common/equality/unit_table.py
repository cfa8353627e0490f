"""Convertible units, scale words, and products of units. No parsing."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

SCALES = {
    "hundred": 100,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "dozen": 12,
}
"""Words that multiply the number and are never dropped."""

_FOOT, _POUND, _GALLON = Fraction("0.3048"), Fraction("0.45359237"), Fraction("0.003785411784")

_RADIAN = Fraction("57.2957795130823208767981548141051703324054724665643215491602438612")
"""Degrees per radian, to more digits than are compared."""

# base dimension -> names of a unit -> its size in the dimension's own unit
_UNITS: dict[str, dict[str, Fraction | int]] = {
    "length": {
        "mm millimeter millimetre": Fraction(1, 1000),
        "cm centimeter centimetre": Fraction(1, 100),
        "dm decimeter decimetre": Fraction(1, 10),
        "m meter metre": 1,
        "km kilometer kilometre": 1000,
        "in inch inche": _FOOT / 12,
        "ft foot feet": _FOOT,
        "yd yard": 3 * _FOOT,
        "mi mile": 5280 * _FOOT,
    },
    "time": {
        "ms millisecond": Fraction(1, 1000),
        "s sec second": 1,
        "min minute": 60,
        "h hr hour": 3600,
        "day": 86400,
        "week": 7 * 86400,
    },
    "calendar": {"month": 1, "yr year": 12, "decade": 120, "century centurie": 1200},
    "mass": {
        "mg milligram": Fraction(1, 1000),
        "g gram": 1,
        "kg kilogram": 1000,
        "oz ounce": 1000 * _POUND / 16,
        "lb pound": 1000 * _POUND,
    },
    "angle": {"arcminute": Fraction(1, 60), "degree deg": 1, "radian rad": _RADIAN},
    "percent": {"% percent": 1},
    "dollar": {"cent ¢ penny pennie": Fraction(1, 100), "dollar usd $": 1},
    "euro": {"euro €": 1},
    "sterling": {"£": 1},
}
_VOLUMES: dict[str, Fraction | int] = {
    "ml milliliter millilitre": Fraction(1, 10**6),
    "l liter litre": Fraction(1, 1000),
    "cup": _GALLON / 16,
    "pint": _GALLON / 8,
    "quart": _GALLON / 4,
    "gal gallon": _GALLON,
}


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
    for dimension, units in _UNITS.items():
        for names, size in units.items():
            table |= dict.fromkeys(names.split(), Unit(Fraction(size), ((dimension, 1),)))
    for names, size in _VOLUMES.items():
        table |= dict.fromkeys(names.split(), Unit(Fraction(size), (("length", 3),)))
    mile, metre = table["mile"], table["km"]
    table["mph"] = mile.times(table["hour"].power(-1))
    table |= dict.fromkeys(("kmph", "kmh", "kph"), metre.times(table["hour"].power(-1)))
    return table


TABLE = _table()
PERCENT = TABLE["percent"]


def unit_named(word: str) -> Unit | None:
    """The unit of a word, singular or plural, in any case; None if unknown."""
    word = word.lower().rstrip(".")
    singular = word.removesuffix("s") if len(word) > 2 else word
    return TABLE.get(word) or TABLE.get(singular)
