"""Detects gold answers that parse as something else than their text says. Such an answer equals itself, so
only a comparison of its value with its text can tell.

For trusted answers of a data set only: the cost may be unbounded."""

import re
from collections.abc import Iterable

from sympy import Basic, N, Rational, Symbol
from sympy.core.expr import Expr

from hora_rl.actors.verifier.equality.expressions import parse
from hora_rl.actors.verifier.equality.sizes import bounded

_NUMERAL = re.compile(r"\d+(?:\.\d+)?")
_INDEX = re.compile(r"_\s*(?:\{[^{}]*\}|\\?\w)")
_BASED = re.compile(r"\w+_(?:[2-9]|[12]\d|3[0-6])")
_CODE = re.compile(r"(?<![\w\\])0[xXbBoO][0-9A-Fa-f]+|(?<![\d.])\d+\.\d+\.(?!\d{3}(?!\d))\d+")
"""A numeral of a program or a version, which is read as a product."""


def misreading(gold: str, values: Iterable[str]) -> str | None:
    """How the values that a gold answer claims are read wrongly; None if their text agrees with them."""
    if _CODE.search(gold):
        return "is read as a product"
    for value in values:
        parsed = parse(value)
        if not isinstance(parsed, Basic) or "\\approx" in value:  # of an approximation one side counts
            continue
        if (number := _python_number(gold)) is not None and not _agrees(parsed, number):
            return f"is read as {parsed}, not as {number:g}"
        # `x_{12}` is a variable. `13` as one is a numeral that was taken for it.
        names = [symbol.name for symbol in parsed.atoms(Symbol)]
        if name := next((name for name in names if any(map(str.isdigit, _INDEX.sub("", name)))), None):
            return f"is read with {name!r} as a variable"
        if lost := _lost_numeral(value, parsed):
            return f"is read without its {lost}"
    return None


def _python_number(text: str) -> complex | None:
    """The text as Python's number, as CSV files have it; None if it is none, or a numeral with its base."""
    if _BASED.fullmatch(text.strip()):
        return None
    try:
        return complex(text.strip())
    except ValueError:
        return None


def _agrees(parsed: Basic, number: complex) -> bool:
    if number != number or abs(number) == float("inf"):
        return True
    if parsed.free_symbols or not isinstance(parsed, Expr):
        return False
    return abs(complex(N(parsed)) - number) <= 1e-9 * abs(number)


def _lost_numeral(text: str, parsed: Basic) -> str | None:
    """A numeral that is not among the value's numbers, and of which another changes nothing."""
    numbers = parsed.atoms(Rational)
    kept = {str(abs(number.p)) for number in numbers} | {str(number.q) for number in numbers}
    without_bases = _INDEX.sub(lambda index: " " * len(index[0]), text)  # they are compared
    for numeral in _NUMERAL.finditer(without_bases):
        if numeral[0] in kept:
            continue
        other = f"{text[: numeral.start()]}{int(numeral[0].split('.')[0]) + 7}{text[numeral.end() :]}"
        if bounded(other, 2000) and parse(other) == parsed:
            return numeral[0]
    return None
