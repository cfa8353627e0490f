"""Detects gold answers that are solutions: an answer within other text, which no completion can equal."""

import re

from hora_rl.common.equality.notation import TEXT
from hora_rl.common.equality.texts import BOXED, SPACE, closing_brace, unwrapped
from hora_rl.common.equality.units import is_unit_word

_SEPARATORS = re.compile(rf"(?:{SPACE}|[,;$]|\\[()\[\]]|\b(?:and|or)\b|{TEXT}\{{[\s,]*(?:and|or)?[\s,]*\}})*")
_FORMULA = re.compile(r"(?<!\\)\$[^$]+(?<!\\)\$|\\\(.+?\\\)", re.DOTALL)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]+")
_MISSING = frozenset({"nan", "NaN", "<NA>", "NaT"})
"""What pandas writes for a missing value."""
_SENTENCE = 3
"""Number of words around a formula that make a sentence, without units."""


def solution_fault(gold: str) -> str | None:
    """Why a gold answer is a solution, and what to give instead; None otherwise."""
    if gold.strip() in _MISSING:
        return "is a missing value"
    if "####" in gold:
        return "cannot be verified (give a column with what follows '####' alone)"
    text = unwrapped(gold)
    if (BOXED in text and _around_boxes(text)) or _is_sentence(text):
        return "cannot be verified (give the answer alone, not the solution)"
    return None


def _around_boxes(text: str) -> bool:
    """Whether text other than commas and "and" surrounds the boxes."""
    while (start := text.rfind(BOXED)) >= 0:
        end = closing_brace(text, start + len(BOXED) - 1)
        text = f"{text[:start]} {text[end + 1 :] if end >= 0 else ''}"
    return _SEPARATORS.fullmatch(text) is None


def _is_sentence(text: str) -> bool:
    if not _FORMULA.search(text):
        return False
    words = [word for word in _WORD.findall(_FORMULA.sub(" ", text)) if word not in ("and", "or")]
    return sum(not is_unit_word(word) for word in words) >= _SENTENCE
