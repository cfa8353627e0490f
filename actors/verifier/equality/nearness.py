"""Whether two expressions have the same value, within a relative tolerance.

math-verify rounds differences to six places, so 2⁻⁹⁹ equals 2⁻⁹⁸ and 0. Here real and complex numbers are
compared relative to their size, and expressions with variables at one point."""

from collections.abc import Iterator, Sequence

from sympy import Add, Basic, Expr, Float, I, Interval, Mul, N, Pow, Rational, Symbol, oo
from sympy.core.containers import Tuple
from sympy.core.expr import UnevaluatedExpr
from sympy.core.sorting import default_sort_key
from sympy.matrices import MatrixBase
from sympy.sets import FiniteSet

_DIGITS = 30
_SAME = Float("1e-25", _DIGITS)
_EXACT = Float("1e-12", _DIGITS)
_DECIMAL = Float("1e-4", _DIGITS)
"""Relative tolerance for decimals: four significant digits. math-verify compares six decimal places."""


def same_value(gold: object, answer: object) -> bool | None:
    r"""Whether two parsed answers have the same value; None if math-verify must decide.

    True only for two exact numbers. A number differs from an expression with a variable (`x/x` for 1), from
    an infinity (`\infty+1`), and a list of sets from a set."""
    if any(_differ(left, right) for left, right in _pairs(gold, answer)) or _nested(gold) != _nested(answer):
        return False
    exact = (isinstance(e, Expr) and not e.has(Float, UnevaluatedExpr) for e in (gold, answer))
    if not all(exact) or not isinstance(gold, Expr) or gold.free_symbols:
        return None
    a, b = _value(gold), _value(answer)
    return True if a is not None and b is not None and _near(a, b, _SAME) else None


def _computes_infinity(expression: Basic) -> bool:
    """Whether an infinity is part of the arithmetic. The bounds of a sum or an integral do not count."""
    return expression in (oo, -oo) or (
        isinstance(expression, Add | Mul | Pow) and any(map(_computes_infinity, expression.args))
    )


def _nested(parsed: object) -> bool:
    return isinstance(parsed, FiniteSet) and any(isinstance(element, FiniteSet) for element in parsed.args)


def _pairs(gold: object, answer: object) -> Iterator[tuple[Expr, Expr]]:
    """Pairs of numbers from two answers of the same structure; none for different structures."""
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
        for left, right in zip(gold, answer, strict=True):
            yield from _pairs(left, right)


def _by_size(elements: FiniteSet) -> list[Expr]:
    values = [(value, element) for element in elements.args if (value := _value(element)) is not None]
    if len(values) < len(elements.args):
        return sorted(elements.args, key=default_sort_key)
    return [element for _, element in sorted(values, key=lambda pair: _place(pair[0]))]


def _place(value: Expr) -> tuple[float, float]:
    real, imaginary = value.as_real_imag()
    return round(float(real), 9), float(imaginary)


def _differ(left: Expr, right: Expr) -> bool:
    if left == right or left.has(UnevaluatedExpr) or right.has(UnevaluatedExpr):  # a percentage
        return False
    literal = right in (oo, -oo) or (right.is_Mul and set(right.args) == {oo, -1})  # `\infty` itself
    if _computes_infinity(right) and not literal:
        return True
    if right.free_symbols and not left.free_symbols:
        return True
    if {symbol.name for symbol in left.free_symbols} != {symbol.name for symbol in right.free_symbols}:
        return False
    a, b = _value(left), _value(right)
    if a is None or b is None:
        return False
    return not _near(a, b, _DECIMAL if left.has(Float) or right.has(Float) else _EXACT)


def _near(a: Expr, b: Expr, tolerance: Float) -> bool:
    return bool(abs(a - b) <= tolerance * max(abs(a), abs(b)))


def _value(expression: object) -> Expr | None:
    """The real or complex value, with variables at fixed points derived from their names; None if none."""
    if not isinstance(expression, Expr):
        return None
    points = {symbol: _point(symbol) for symbol in expression.free_symbols}
    try:
        value = N(expression.subs(points), _DIGITS)
    except (TypeError, ValueError, ArithmeticError, AttributeError, NotImplementedError):
        return None  # sympy has no number for it
    parts = value.as_real_imag()
    if not all(part.is_Float or part.is_Rational for part in parts):
        return None
    real, imaginary = (Float(0) if part.is_Float and part._prec == 1 else part for part in parts)
    return real + imaginary * I  # a part of precision 1 has no certain digit: zero


def _point(symbol: Symbol) -> Rational:
    code = sum(ord(char) * 31**i for i, char in enumerate(symbol.name))
    return Rational(1, 3) + Rational(code % 9973, 9973)
