r"""Quantities with units: `2\text{ hours }30\text{ minutes}`, `\$3\text{ million}`, `28 cm^2`.

Either side may omit its unit. If both sides have convertible units, the quantities must be equal: `150\text{
minutes}` is `2.5` hours, `28\text{ cents}` is not `\$28`. A scale word always belongs to the number."""

import re
from dataclasses import dataclass
from fractions import Fraction

from hora_rl.actors.verifier.equality.notation import LETTER, MATHS, NATIVE, TEXT
from hora_rl.actors.verifier.equality.texts import SPACE, canonical_number, pointed, without_commas
from hora_rl.actors.verifier.equality.unit_table import (
    CURRENCIES,
    MORE_IN,
    MORE_WORDS,
    ONE,
    PERCENT,
    SCALES,
    SIGNS,
    UNKNOWN,
    Unit,
    unit_named,
    without_scales,
)

_WORDS = r"\\(?:text(?:bf|rm|it|normal|up)?|mathrm|mbox)\s*\{([^{}\\]*)\}"
_POWER = r"(?:\s*\^\s*(?:\{\s*-?\d\s*\}|\d))?"
_END_TEXT = re.compile(_WORDS + _POWER + r"$")
_DOLLARS = r"(?:(?<![A-Za-z])[A-Z]{1,3})?\\?\$"
_END_SIGN = re.compile(
    rf"(?:\^\s*\{{?\s*\\(?:circ|degree)\b\s*\}}?|\\degree|\\?%|{_DOLLARS}|\\euro|\\pounds|[{SIGNS}])$"
)
_LATIN = "A-Za-z\u00c0-\u024f"
_END_WORD = re.compile(rf"(?<![{_LATIN}\\])([{_LATIN}]+)\.?{_POWER}$")
_END_NATIVE = re.compile(rf"(?<!{NATIVE})({NATIVE}+)\.?{_POWER}$")
_END_JOINT = re.compile(r"(?:/|\\cdot)$")
_END_SPACE = re.compile(rf"(?:{SPACE}|\{{\s*\}})+$")
_CODES = (
    rf"{CURRENCIES.upper().replace(' ', '|')}|R[psM]|rs|S?Fr|[Kk]r|TL|Kč|zł|руб|रु|रू|人民币|人民幣|港[币幣]"
)
_MONEY = re.compile(
    rf"\s*(-?)\s*(?:{TEXT}\{{\s*)?({_DOLLARS}|\\euro\b|\\pounds\b|[A-Z]{{0,2}}[{SIGNS}]|\\?%|(?:{_CODES})\.?)"
    rf"(?:{SPACE}|[{{}}])*(?=[\d.\\(-])"
)
_PER_CENT = re.compile(r"(?<![A-Za-z])(?:per|pour)\s+cent(?![A-Za-z])")
_FLAT_POWER = re.compile(r"(?<=[\d\s}])([mcdk]?m|in|ft|yd|mi)([23])$")
_FRACTION = r"\\[dt]?frac\s*\{\d+\}\s*\{\d+\}"
_END_NUMBER = re.compile(rf"(?:\d[\d,]*(?:\.\d+)?|\.\d+|\d+/\d+|(?:\d+\s*)?{_FRACTION})$")
_END_CONNECTIVE = re.compile(rf"(?:,|{SPACE}|\band\b|\\text\s*\{{\s*(?:,|and)\s*\}})+$")
_TOKEN = re.compile(rf"[A-Za-z]{{0,3}}\$|{LETTER}+|/|\^-?\d|[{SIGNS}%]")
_POWER_OF_TEN = r"(?:\\times 10\^\{[+-]?\d+\})?"
_COUNT = re.compile(
    rf"(-?(?:\d[\d,]*(?:\.\d*)?{_POWER_OF_TEN}|\d+/\d+|{_FRACTION}))\s+"
    r"([^\W\d_][^\W\d_A-Z]{2,19}(?:\s[^\W\d_A-Z]{3,20}){0,2})"
)
_QUOTIENT = re.compile(r"(-?)(\d+(?=\s*\\))?\s*(?:(\d+)/(\d+)|\\[dt]?frac\s*\{?(\d+)\}?\s*\{?(\d+)\}?)")

_MORE = re.compile(
    r"or|not?|never|except|but|and|minus|plus|times|over|divided|multiplied|modulo|mod|remainder|factorial|point"
    r"|if|when|unless|than|least|most|less|fewer|below|short|wrong|false"
    r"|half|halves|(?:third|quarter|(?:fif|six|seven|eigh|nin|ten|twelf|hundred|thousand|[mbt]r?illion)th)s?"
    r"|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|[ijeknxyzd]"
)
"""Words that are more than a unit. A text command with one of them is not a unit."""
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
_GLUED_LETTER = re.compile(r"(?<=\d)(?=[mgshL]$)")
_BEFORE_LETTER = re.compile(r"(?:\d|10\^\{[+-]?\d+\})\s+(?:[A-Za-z]{1,2}\s*/\s*)?$")
_BARE_LETTERS = {"m", "g", "s", "h", "L"}
"""Letters that are units without a text command, after a number and a space. Other letters are variables."""


MOST_TERMS = 5
"""Maximum number of units in one quantity: weeks, days, hours, minutes, seconds."""

MOST_WORDS = 20
"""Maximum number of words in the unit of one number."""


@dataclass(frozen=True)
class Term:
    """One number with its unit. `scale` belongs to the number; `unit` is None without a unit."""

    value: str
    scale: int
    unit: Unit | None

    @property
    def factor(self) -> Fraction:
        """Size of the unit; 1 without a convertible unit."""
        return self.unit.factor if self.unit and self.unit.dimensions is not None else Fraction(1)


Total = tuple[tuple[str, Fraction], ...]
"""Terms of a sum: (value, factor)."""


def measured(text: str, most: int = MOST_TERMS) -> tuple[Term, ...]:
    """The terms of a quantity, usually one; other text as one term without a unit. Several terms need
    descending units of one dimension: `5 ft 6 in`. `5 cm, 3 cm` is a list."""
    term = _term(text)
    if not (term.unit and term.unit.dimensions) or not (number := _END_NUMBER.search(term.value)):
        return (term,)
    head = _END_CONNECTIVE.sub("", term.value[: number.start()])
    before = measured(head, most - 1) if most > 1 and head.strip() else ()
    dimensions = [t.unit.dimensions if t.unit else None for t in before]
    if not before or set(dimensions) != {term.unit.dimensions} or before[-1].factor <= term.factor:
        return (term,)
    return (*before, Term(number.group(), term.scale, term.unit))


def totals(gold: str, answer: str) -> list[tuple[Total, Total]]:
    """Pairs of sums, of which one must be equal; empty if the units differ. A side without a convertible unit
    is read in any unit of the other side. For percentages see `_percentage`."""
    left, right = measured(gold), measured(answer)
    if left[0].unit and not right[0].unit:
        right = measured(_GLUED_LETTER.sub(" ", answer))
    units = left[0].unit, right[0].unit
    if units[0] and units[1] and units[0].dimensions is not None and units[1].dimensions is not None:
        if units[0].dimensions == units[1].dimensions:
            return [(_sum(left, Fraction(1)), _sum(right, Fraction(1)))]
        if not _power_left_out(units[0], units[1]):
            return []
    if PERCENT in units:
        return _percentage(left, right)
    return [(_sum(left, g.factor), _sum(right, a.factor)) for g in left for a in right]


def _percentage(gold: tuple[Term, ...], answer: tuple[Term, ...]) -> list[tuple[Total, Total]]:
    """A gold percentage may be given as its number or its value. A plain gold answer up to 1 is a value; a
    larger one is a number of percent."""
    number = _sum(gold, gold[0].factor), _sum(answer, answer[0].factor)
    value = tuple(
        _sum(terms, terms[0].factor * (100 if terms[0].unit == PERCENT else 1)) for terms in (gold, answer)
    )
    size = None if gold[0].unit == PERCENT else _size(gold[0].value)
    readings = [(number, size is None or size > 1), ((value[0], value[1]), size is None or size <= 1)]
    return [pair for pair, holds in readings if holds]


def in_one_style(gold: str, answer: str) -> tuple[str, str]:
    """Thousands and lakhs without commas, and in the answer a decimal comma as a point, where the other side
    is a number without a comma. Otherwise both may be lists."""
    if "," in gold and "," not in answer and _size(measured(answer)[0].value) is not None:
        return without_commas(gold), answer
    if "," not in answer or "," in gold or (size := _size(measured(gold)[0].value)) is None:
        return gold, answer
    return gold, pointed(without_commas(answer), size.denominator == 1)


def _size(text: str) -> Fraction | None:
    """The absolute value of a plain number or fraction; None otherwise."""
    if (number := canonical_number(text)) is not None:
        return abs(Fraction(number))
    match = _QUOTIENT.fullmatch(text.strip())
    if not match:
        return None
    top, bottom = match[3] or match[5], match[4] or match[6]
    return int(match[2] or 0) + Fraction(int(top), int(bottom)) if int(bottom) else None


def _sum(terms: tuple[Term, ...], unit: Fraction) -> Total:
    return tuple((term.value, term.scale * term.factor / unit) for term in terms)


def _power_left_out(left: Unit, right: Unit) -> bool:
    """Accept cm for cm²: the problem determines the power."""
    dimensions, others = left.dimensions or (), right.dimensions or ()
    if len(dimensions) != 1 or len(others) != 1 or dimensions[0][0] != others[0][0]:
        return False
    n, m = dimensions[0][1], others[0][1]
    return n > 0 < m and 1 in (n, m) and left.factor**m == right.factor**n


def _term(text: str) -> Term:
    if count := _counted(text):
        return Term(count, 1, UNKNOWN)
    rest = text = _FLAT_POWER.sub(r"\1^\2", _PER_CENT.sub("percent", text.rstrip()))
    for _ in range(MOST_WORDS):
        if (shorter := _without_last_unit(rest, first=rest is text)) is None:
            break
        rest = shorter
    tokens = _tokens(text[len(rest) :])
    sign = ""
    if money := _MONEY.match(rest):
        tokens.append(money.group(2).replace("\\", "").lower())
        sign, rest = money.group(1), rest[money.end() :]
    rest = _END_SPACE.sub("", rest)
    if tokens:  # `18 eggs per day`, `\$18 each`
        rest = _counted(rest) or rest
    if not tokens or not rest.strip() or "%" in rest or tokens[0] in ("squared", "cubed"):
        return Term(text, 1, None)
    scale, unit = _product(tokens)
    return Term(sign + rest, scale, unit)


def _counted(text: str) -> str | None:
    """The number in front of words that are no units: `18 red eggs`."""
    match = _COUNT.fullmatch(text.strip())
    words = match[2].lower().split() if match else []
    more = any(is_more(word) or word in MATHS or is_unit_word(word) for word in words)
    return match[1] if match and not more else None


def _without_last_unit(text: str, first: bool) -> str | None:
    """The text before its last unit; None if it does not end in one. A slash may separate units."""
    text = _END_SPACE.sub("", text)
    if not first and (joined := _END_JOINT.search(text)):
        text = _END_SPACE.sub("", text[: joined.start()])
    for pattern, fits in _ENDS:
        if match := pattern.search(text):
            return text[: match.start()] if fits(match) else None
    return None


def _is_unit(match: re.Match[str]) -> bool:
    """Whether the words of a text command can be a unit: no digits and no word of `_MORE`."""
    words = re.sub(r"\^-?\d", "", match.group(1))
    names = re.findall(rf"{LETTER}+", words.lower())
    inner = names[names[:1] == ["and"] : len(names) - (names[-1:] == ["and"])]  # `feet and` 6 inches
    return bool(names) and not re.search(r"\d", words) and not any(map(is_more, inner))


def _is_plain_unit(match: re.Match[str]) -> bool:
    """Whether a word outside a text command is a known unit after something countable."""
    word, before = match.group(1), match.string[: match.start()]
    if len(word) == 1:
        return word in _BARE_LETTERS and bool(_BEFORE_LETTER.search(before))
    return is_unit_word(word) and bool(before.strip())


def is_more(word: str) -> bool:
    """Whether a word after a number, in small letters, is more than a unit: `or`, `half`, `以上`."""
    return bool(_MORE.fullmatch(word) or MORE_IN.search(word)) or word in MORE_WORDS


def _is_native_unit(match: re.Match[str]) -> bool:
    """Whether a word of a script that is no mathematics follows something: `42个`, `42 рублей`."""
    return bool(match.string[: match.start()].strip()) and not is_more(match.group(1).lower())


_ENDS = (
    (_END_TEXT, _is_unit),
    (_END_SIGN, bool),
    (_END_NATIVE, _is_native_unit),
    (_END_WORD, _is_plain_unit),
)


def is_unit_word(word: str) -> bool:
    """Whether a word is a unit, a scale, or a connective of units."""
    return bool(unit_named(word)) or word.lower() in {*SCALES, *_POWERS, "per", "unit", "units", "degrees"}


def _tokens(unit: str) -> list[str]:
    words = re.sub(r"\^\s*\{?\s*\\(?:circ|degree)\b\s*\}?|\\degree", " degree ", unit)
    words = words.replace(r"\euro", "€").replace(r"\pounds", "£").replace(r"\$", "$")
    words = re.sub(_WORDS, r" \1 ", words)
    words = re.sub(r"\^\s*\{?\s*(-?\d)\s*\}?", r" ^\1 ", words)
    tokens = [token.lower() for token in _TOKEN.findall(words) if token.lower() != "and"]
    return [part for token in tokens for part in without_scales(token)]


def _product(tokens: list[str]) -> tuple[int, Unit | None]:
    """Scale and unit of words in order. `per` and `/` divide by the next unit; `square`, `^2` are powers."""
    scale, unit, sign, power, last = 1, ONE, 1, 1, None
    for token in tokens:
        if token in SCALES and last is None:
            scale *= SCALES[token]
        elif token in ("per", "/"):
            sign = -1
        elif token in _POWERS and not token.endswith("d"):
            power = _POWERS[token]
        elif token in _POWERS or token.startswith("^"):
            exponent = _POWERS.get(token) or int(token[1:])
            unit = unit.times(last.power(exponent - 1)) if last else UNKNOWN
        else:
            named = unit_named(token) or UNKNOWN
            last = named.power(sign * power)
            unit, sign, power = unit.times(last), 1, 1
    return scale, unit if last else None
