"""Compares two answers as mathematics with math-verify. Time and memory are unbounded: call it in a killable
process.

math-verify's time limits are off, because they use signals, which work only in a main thread. Its answer
search and its removal of units are not used: the text is the answer, and units are compared. It rounds
differences to six places, so 2⁻⁹⁹ equals 2⁻⁹⁸ and 0. So real and complex numbers are first compared relative
to their size, and expressions with variables at one point."""

import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from latex2sympy2_extended.logic import And
from math_verify import verify
from sympy import Add, Basic, Derivative, Expr, Float, I, Mul, N, Pow, Rational, S, Symbol, oo
from sympy.core.containers import Tuple
from sympy.core.expr import UnevaluatedExpr
from sympy.core.relational import Ne, Relational
from sympy.core.sorting import default_sort_key
from sympy.logic.boolalg import Boolean
from sympy.matrices import MatrixBase
from sympy.sets import Complement, FiniteSet, Intersection, Interval, Set, Union

from hora_rl.actors.verifier.equality.claims import DOTS
from hora_rl.actors.verifier.equality.notation import TEXT, intervals
from hora_rl.actors.verifier.equality.texts import SPACE, split_outside, ungrouped
from hora_rl.actors.verifier.equality.units import Total
from hora_rl.common.errors import any_error_as

_NORMAL = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
_EMPTY = re.compile(r"\\varnothing\b|\\\{\s*\\\}|\\left\s*\\\{\s*\\right\s*\\\}")
_MIXED = re.compile(r"(?<![\d.])(\d+)\s+(\d+)/(\d+)")
_LAST_DOTS = re.compile(rf"[,\s]*(?:{DOTS.pattern})\s*(?=\\?\}}?$)")

_BUILDER = re.compile(
    r"(?:\\left\s*)?\\\{\s*[A-Za-z]\s*(?:\\in\s*(?:\\mathbb\s*\{?R\}?|\\R)\s*)?(?:\\mid|:|\||\\vert)(.*?)(?:\\right\s*)?\\\}"
)
_OR = re.compile(rf"{TEXT}\{{[\s,]*or\s*\}}|\bor\b|\\lor\b|\\vee\b")
_AND = re.compile(rf"{TEXT}\{{[\s,]*and\s*\}}|\band\b|\\land\b|\\wedge\b|,")
_RELATION = re.compile(r"<|>|\\[lg]e(?:q|qslant)?\b|\\[lg]t\b|\\neq?\b|\\not")
_ELEMENT = re.compile(r"^\s*[A-Za-z]\s*\\in(?![A-Za-z])")
_EDGE = re.compile(rf"^(?:{SPACE}|,)+|(?:{SPACE}|,)+$")

_DIGITS = 30
_SAME = Float("1e-25", _DIGITS)
_EXACT = Float("1e-12", _DIGITS)
_DECIMAL = Float("1e-4", _DIGITS)
"""Relative tolerance for decimals: four significant digits. math-verify compares six decimal places."""

logging.getLogger("math_verify.grader").setLevel(logging.ERROR)  # no warning that time limits are off


def equal(gold: str, answer: str) -> bool:
    """Whether two texts are the same expression, number, set, interval, vector or relation."""
    left, right = parse(gold), parse(answer)
    if left is not None and right is not None and _same(left, right):
        return True
    return _same_sets(gold, answer)


def equal_totals(gold: Total, answer: Total) -> bool:
    if len(gold) == len(answer) == 1 and gold[0][1] == answer[0][1]:
        return equal(gold[0][0], answer[0][0])
    left, right = _added(gold), _added(answer)
    return left is not None and right is not None and _same(left, right)


def parse(text: str) -> Basic | None:
    """The text as one expression; None if it does not parse."""
    text = intervals(_EMPTY.sub(r"\\emptyset ", ungrouped(text)).replace("**", "^"))
    text = _MIXED.sub(r"\1\\frac{\2}{\3}", _LAST_DOTS.sub("", text))
    try:
        with any_error_as(ValueError, but=MemoryError):  # the parser raises plain Exception for bad syntax
            normal = normalize_latex(text, _NORMAL)
            parsed = latex2sympy(normal, is_real=True, convert_degrees=False, normalization_config=None)
            if not isinstance(parsed, Basic) and not hasattr(parsed, "shape"):
                return None
            compares = isinstance(parsed, Boolean) and not isinstance(parsed, Expr)
            if compares:
                return parsed
            if not isinstance(parsed, Interval):  # an interval or a pair needs an order
                parsed = parsed.subs({symbol: I for symbol in parsed.free_symbols if symbol.name == "i"})
            return _plain_powers(parsed)
    except ValueError:
        return None


def _plain_powers(parsed: Any) -> Any:
    r"""Decimal exponents as fractions, and roots of quotients as quotients of roots: `2^{0.5}` is `\sqrt{2}`,
    `\sqrt{1/n}` is `1/\sqrt{n}`, as for positive n."""
    plain = {}
    for power in parsed.atoms(Pow):
        if not power.exp.is_Float and (not power.exp.is_Rational or power.exp.is_Integer):
            continue
        top, bottom = power.base.as_numer_denom() if power.base.free_symbols else (power.base, S.One)
        if power.exp.is_Float or bottom != 1:
            exponent = Rational(str(power.exp)) if power.exp.is_Float else power.exp
            plain[power] = Pow(top, exponent) / Pow(bottom, exponent)
    return parsed.xreplace(plain) if plain else parsed


def _same(gold: Basic, answer: Basic) -> bool:
    r"""Two exact numbers are compared here, other expressions by math-verify. A number differs from an
    expression with a variable (`x/x` for 1), from an infinity (`\infty+1`), and a list of sets from a set."""
    if gold.has(Derivative) or answer.has(Derivative):  # of a letter by another, sympy takes it as 0
        return bool(gold == answer)
    if any(_differ(left, right) for left, right in _pairs(gold, answer)) or _nested(gold) != _nested(answer):
        return False
    exact = (isinstance(e, Expr) and not e.has(Float, UnevaluatedExpr) for e in (gold, answer))
    if all(exact) and not gold.free_symbols:
        a, b = _value(gold), _value(answer)
        if a is not None and b is not None and _near(a, b, _SAME):
            return True
    return bool(verify(gold, answer, timeout_seconds=None))


def _same_sets(gold: str, answer: str) -> bool:
    """Compares an inequality with an interval, or two inequalities in one variable."""
    relations = _is_relation(gold), _is_relation(answer)
    if not any(relations):
        return False
    if all(relations):
        names = {_variable(gold), _variable(answer)} - {None}  # None: `\{x : x>2\}`
        if len(names) > 1:
            return False
    left, right = _region(gold), _region(answer)
    if left is None or right is None:
        return False
    return left == right or left.symmetric_difference(right) is S.EmptySet


def _is_relation(text: str) -> bool:
    return _RELATION.search(text) is not None


def _region(text: str) -> Set | None:
    """The set of real numbers described by a text; None if it does not parse as one."""
    if built := _BUILDER.fullmatch(text.strip()):
        text = built.group(1)
    text = _ELEMENT.sub("", text)
    if not _is_relation(text):
        parsed = parse(text)
        return parsed if isinstance(parsed, Set) else None
    pieces = [[_relation(part) for part in split_outside(piece, _AND)] for piece in split_outside(text, _OR)]
    sets = [_intersection(piece) for piece in pieces]
    known = [item for item in sets if item is not None]
    return Union(*known) if len(known) == len(sets) else None


def _variable(text: str) -> str | None:
    """The only variable of an inequality's first relation; None otherwise."""
    first = split_outside(split_outside(text, _OR)[0], _AND)[0]
    parsed = parse(_EDGE.sub("", first))
    names = {s.name for s in parsed.free_symbols} if isinstance(parsed, Relational | And) else set()
    return names.pop() if len(names) == 1 else None


def _intersection(parts: list[Set | None]) -> Set | None:
    known = [part for part in parts if part is not None]
    return Intersection(*known) if len(known) == len(parts) else None


def _relation(text: str) -> Set | None:
    parsed = parse(_EDGE.sub("", text))
    relations = parsed._unsorted_args if isinstance(parsed, And) else [parsed]
    return _intersection([_interval(item) if isinstance(item, Relational) else None for item in relations])


def _interval(relation: Relational) -> Set | None:
    """`x < 2` as an interval. None unless it compares a variable with a number."""
    if relation.rhs.is_Symbol:
        relation = relation.reversed
    symbol, end = relation.lhs, relation.rhs
    if not symbol.is_Symbol or end.free_symbols or not end.is_extended_real:
        return None
    if isinstance(relation, Ne):
        return Complement(S.Reals, FiniteSet(end))
    below = {"<": Interval.open(-oo, end), "<=": Interval(-oo, end)}
    above = {">": Interval.open(end, oo), ">=": Interval(end, oo)}
    return {**below, **above}.get(relation.rel_op)


def _added(total: Total) -> Expr | None:
    terms = [(parse(value), factor) for value, factor in total]
    if not all(isinstance(value, Expr) for value, _ in terms):
        return None
    return Add(*(Mul(value, Rational(factor.numerator, factor.denominator)) for value, factor in terms))


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
