r"""Sets of real numbers in any notation: `-2 \le x \le 7`, `[-2, 7]`, `x < 2 \text{ or } x > 5`, `x\ne3`."""

import re
from collections.abc import Callable

from latex2sympy2_extended.logic import And
from sympy import Complement, FiniteSet, Intersection, Interval, Ne, S, Set, Union, oo
from sympy.core.relational import Relational

from hora_rl.actors.verifier.equality.notation import TEXT
from hora_rl.actors.verifier.equality.texts import SPACE, split_outside

_BUILDER = re.compile(
    r"(?:\\left\s*)?\\\{\s*[A-Za-z]\s*(?:\\in\s*(?:\\mathbb\s*\{?R\}?|\\R)\s*)?(?:\\mid|:|\||\\vert)(.*?)(?:\\right\s*)?\\\}"
)
_OR = re.compile(rf"{TEXT}\{{[\s,]*or\s*\}}|\bor\b|\\lor\b|\\vee\b")
_AND = re.compile(rf"{TEXT}\{{[\s,]*and\s*\}}|\band\b|\\land\b|\\wedge\b|,")
_RELATION = re.compile(r"<|>|\\[lg]e(?:q|qslant)?\b|\\[lg]t\b|\\neq?\b|\\not")
_ELEMENT = re.compile(r"^\s*[A-Za-z]\s*\\in(?![A-Za-z])")
_EDGE = re.compile(rf"^(?:{SPACE}|,)+|(?:{SPACE}|,)+$")

Parse = Callable[[str], object]


def is_relation(text: str) -> bool:
    """Whether a text may be an inequality."""
    return _RELATION.search(text) is not None


def region(text: str, parse: Parse) -> Set | None:
    """The set of real numbers described by a text; None if it does not parse as one."""
    if built := _BUILDER.fullmatch(text.strip()):
        text = built.group(1)
    text = _ELEMENT.sub("", text)
    if not is_relation(text):
        parsed = parse(text)
        return parsed if isinstance(parsed, Set) else None
    pieces = [
        [_relation(part, parse) for part in split_outside(piece, _AND)] for piece in split_outside(text, _OR)
    ]
    sets = [_intersection(piece) for piece in pieces]
    known = [item for item in sets if item is not None]
    return Union(*known) if len(known) == len(sets) else None


def variable(text: str, parse: Parse) -> str | None:
    """The only variable of an inequality's first relation; None otherwise."""
    first = split_outside(split_outside(text, _OR)[0], _AND)[0]
    parsed = parse(_EDGE.sub("", first))
    names = {s.name for s in parsed.free_symbols} if isinstance(parsed, Relational | And) else set()
    return names.pop() if len(names) == 1 else None


def _intersection(parts: list[Set | None]) -> Set | None:
    known = [part for part in parts if part is not None]
    return Intersection(*known) if len(known) == len(parts) else None


def _relation(text: str, parse: Parse) -> Set | None:
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
