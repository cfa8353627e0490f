"""Whether two expressions have the same value, to a relative tolerance.

math-verify rounds differences to six places and drops what is small against 1: 2⁻⁹⁹ equals 2⁻⁹⁸ and 0 to it.
Here numbers are compared relative to their size, and expressions with variables at one point.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sympy import (
    Expr,
    Float,
    Interval,
    MatrixBase,
    N,
    Rational,
    Symbol,
    Tuple,
    UnevaluatedExpr,
    default_sort_key,
)
from sympy.sets import FiniteSet

_DIGITS = 30
_EXACT = Float("1e-12", _DIGITS)
_DECIMAL = Float("1e-4", _DIGITS)
"""Relative tolerance. math-verify compares six decimal places; this adds four significant digits for small
numbers."""


def far_apart(gold: object, answer: object) -> bool:
    """Whether two parsed answers certainly differ. If False, math-verify decides."""
    return any(_differ(one, other) for one, other in _pairs(gold, answer))


def _pairs(gold: object, answer: object) -> Iterator[tuple[Expr, Expr]]:
    """Pairs of numbers of two answers with the same structure; none for different structures."""
    if isinstance(gold, Interval) and isinstance(answer, Interval):
        yield from _zipped(gold.args[:2], answer.args[:2])
    elif isinstance(gold, FiniteSet) and isinstance(answer, FiniteSet):
        yield from _zipped(_by_size(gold), _by_size(answer))
    elif isinstance(gold, Tuple) and isinstance(answer, Tuple):
        yield from _zipped(gold.args, answer.args)
    elif isinstance(gold, MatrixBase) and isinstance(answer, MatrixBase) and gold.shape == answer.shape:
        yield from _zipped(gold.flat(), answer.flat())
    elif isinstance(gold, Expr) and isinstance(answer, Expr):
        yield gold, answer


def _zipped(gold: Sequence[object], answer: Sequence[object]) -> Iterator[tuple[Expr, Expr]]:
    if len(gold) == len(answer):
        for one, other in zip(gold, answer, strict=True):
            yield from _pairs(one, other)


def _by_size(elements: FiniteSet) -> list[Expr]:
    values = [(value, element) for element in elements.args if (value := _value(element)) is not None]
    if len(values) < len(elements.args):
        return sorted(elements.args, key=default_sort_key)
    return [element for _, element in sorted(values, key=lambda pair: float(pair[0]))]


def _differ(one: Expr, other: Expr) -> bool:
    if (
        one == other or one.has(UnevaluatedExpr) or other.has(UnevaluatedExpr)
    ):  # a percentage has two readings
        return False
    names = {s.name for s in one.free_symbols}, {s.name for s in other.free_symbols}
    if names[0] != names[1] and (names[0] or other.is_Symbol):  # math-verify reads `abc` as a name too
        return False
    a, b = _value(one), _value(other)
    if a is None or b is None:
        return False
    tolerance = _DECIMAL if one.has(Float) or other.has(Float) else _EXACT
    return bool(abs(a - b) > tolerance * max(abs(a), abs(b)))


def _value(expression: object) -> Float | None:
    """The real value, with each variable at a fixed point that follows from its name; None where there is
    none."""
    if not isinstance(expression, Expr):
        return None
    points = {symbol: _point(symbol) for symbol in expression.free_symbols}
    try:
        value = N(expression.subs(points), _DIGITS)
    except (TypeError, ValueError, ArithmeticError, AttributeError, NotImplementedError):
        return None  # sympy has no number for it
    if not value.is_Float and not value.is_Rational:
        return None
    return Float(0) if value.is_Float and value._prec == 1 else value  # no digit is certain: treat it as zero


def _point(symbol: Symbol) -> Rational:
    code = sum(ord(char) * 31**i for i, char in enumerate(symbol.name))
    return Rational(1, 3) + Rational(code % 9973, 9973)
