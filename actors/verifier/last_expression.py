"""The last number or expression in natural text, with its unit: `So 7 + 5 = 12 apples.` -> `12 apples`.

Takes linear time, also on hostile text."""

import re
from typing import NamedTuple

from hora_rl.actors.verifier.equality.notation import FUNCTIONS, NATIVE, TEXT
from hora_rl.actors.verifier.equality.units import is_more, is_unit_word

LONGEST = 2000
"""Only the last so many characters of a text are read."""

_FORMULA = (
    r"\$\$([^$]{1,500})\$\$|(?<!\\)\$(?!\s)([^$]{1,500})(?<![\s\\])\$(?!\d)"
    r"|\\\((.{1,500}?)\\\)|\\\[(.{1,500}?)\\\]"
)
_PIECE = re.compile(rf"(?:{_FORMULA})([.,;:!?]?)|(?:{TEXT}\{{[^{{}}]*\}}|\S)+", re.DOTALL)
_MARKS = "*_`\"'“”’«»„「」『』"
_ENDS = ".,;:!?"
_NAMED = re.compile(
    rf"{TEXT}\{{[^{{}}]*\}}|\\[A-Za-z]+|(?<![A-Za-z])(?:{'|'.join(FUNCTIONS)}|pi)(?![A-Za-z])"
)
_WORD = re.compile(rf"[A-Za-z]{{2}}|[\u00c0-\u024f]|[\u0370-\u03ff\u1f00-\u1fff]{{3}}|{NATIVE}")
_NATIVE = re.compile(rf"{NATIVE}+")
_PUNCTUATION = str.maketrans("，。；：！？、（）،؛؟۔।", ",.;:!?,(),;?..")
_GLUED = re.compile(r"(\d)(?!(?:st|nd|rd|th)\b)([A-Za-z]{2,}\.?)(?=[\s.,;:!?]|\Z)")
_VALUE = re.compile(r"\d|\\[A-Za-z]|[A-Za-z)]\s*[-+*/^]\s*[A-Za-z(]|∞|π|√")
_SIDE = re.compile(r"=|≈|\\(?:approx|simeq|to|[Rr]ightarrow)\b|→|->")
_BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"))
_FRAGMENT = " \t\n,;#&*/+<|-\\"
"""Characters at the end of a truncated completion."""
_COUNTED = re.compile(rf"[a-z]{{3,20}}|{NATIVE}+")
_NO_UNIT = re.compile(
    r"and|are|but|for|from|has|have|not|that|the|then|they|times|was|were|which|with|because|since"
)
"""Words after a number that are no unit."""


class _Piece(NamedTuple):
    text: str
    ends: bool
    """Whether punctuation follows."""

    @property
    def is_math(self) -> bool:
        return bool(self.text) and (bool(re.search(r"[\\{}^=]", self.text)) or not self.is_word)

    @property
    def is_word(self) -> bool:
        return _WORD.search(_NAMED.sub("0", self.text)) is not None


def last_expression(text: str) -> str | None:
    """The last number or expression in a text; of an equation, its last side. A text without words is
    returned as is. None if there is no expression."""
    if not _VALUE.search(text):
        return None
    pieces = _pieces(_spaced(text[-LONGEST:]))
    if not any(piece.is_word for piece in pieces):
        return text.strip().rstrip(_FRAGMENT)
    last, i = None, 0
    while i < len(pieces):
        run, after = _run(pieces, i)
        last, i = _value(run) or last, max(after, i + 1)
    return last


def _spaced(text: str) -> str:
    """Words of other scripts apart from numbers, and ASCII punctuation: `共42个。` -> `共 42 个.`"""
    return text if text.isascii() else _NATIVE.sub(r" \g<0> ", text.translate(_PUNCTUATION))


def _pieces(text: str) -> list[_Piece]:
    """Formulas and words, without emphasis and closing punctuation."""
    pieces = []
    for match in _PIECE.finditer(_GLUED.sub(r"\1 \2", text)):
        *formulas, end = match.groups()
        word = match[0].strip(_MARKS)
        core = next(
            (formula for formula in formulas if formula), word.rstrip(_ENDS).rstrip(_MARKS).lstrip(_MARKS)
        )
        pieces.append(_Piece(core, bool(end) or (end is None and word[-1:] in _ENDS)))
    return pieces


def _run(pieces: list[_Piece], start: int) -> tuple[str, int]:
    """The expression that begins at this piece, with its units, and the index after it."""
    run, i = "", start
    while i < len(pieces):
        piece = pieces[i]
        text = piece.text if piece.is_math else _unit(pieces, i) if run else None
        if text is None:
            break
        run, i = f"{run} {text}", i + 1
        if not piece.is_math and text != "and" and not is_unit_word(text):
            break
        if piece.ends:
            if all(run.count(opening) <= run.count(closing) for opening, closing in _BRACKETS):
                break
            run += ","
    return run, i


def _unit(pieces: list[_Piece], i: int) -> str | None:
    """The piece as the unit of the number before it; None if it is no unit."""
    word = pieces[i].text
    follows = i + 1 < len(pieces)
    if word == "and" and follows and is_unit_word(pieces[i - 1].text) and pieces[i + 1].text[:1].isdigit():
        return word
    if word.lower() == "in" and follows and not pieces[i].ends:
        return None
    if is_unit_word(word):
        return word
    counts = pieces[i - 1].is_math and _COUNTED.fullmatch(word) and not _NO_UNIT.fullmatch(word)
    return word if counts and not (_NATIVE.match(word) and is_more(word)) else None


def _value(run: str) -> str | None:
    """The last side of a run that has a value, without unclosed brackets."""
    sides = [side.strip(" ,") for side in _SIDE.split(run) if _VALUE.search(side)]
    if not sides:
        return None
    text = re.sub(r"^(?:y\s+)?[aAI]\s+(?=[-\d\\])", "", sides[-1])  # `Il y a 42`
    for opening, closing in _BRACKETS:
        more = text.count(opening) - text.count(closing)
        if more > 0:
            text = text.replace(opening, "", more)
        elif more < 0:
            text = text[::-1].replace(closing, "", -more)[::-1]
    return text.strip().rstrip(_FRAGMENT) or None
