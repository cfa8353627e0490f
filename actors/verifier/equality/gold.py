"""Why accuracy cannot be judged against a gold answer: it is a solution, which no completion can equal,
or it is read as something else than its text says.

For trusted answers of a data set only: the cost may be unbounded."""

import re

from hora_rl.actors.verifier.equality.notation import TEXT
from hora_rl.actors.verifier.equality.numerals import canonical_number
from hora_rl.actors.verifier.equality.sizes import bounded
from hora_rl.actors.verifier.equality.texts import BOXED, SPACE, bare, closing_brace, unwrapped
from hora_rl.actors.verifier.equality.units import is_unit_word
from hora_rl.actors.verifier.equality.verdict import claimed
from hora_rl.actors.verifier.equality.words import is_words

_SEPARATORS = re.compile(rf"(?:{SPACE}|[,;$]|\\[()\[\]]|\b(?:and|or)\b|{TEXT}\{{[\s,]*(?:and|or)?[\s,]*\}})*")
_FORMULA = re.compile(r"(?<!\\)\$[^$]+(?<!\\)\$|\\\(.+?\\\)", re.DOTALL)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]+")
_MISSING = frozenset({"nan", "NaN", "<NA>", "NaT"})
"""What pandas writes for a missing value."""
_SENTENCE = 3
"""Number of words around a formula that make a sentence, without units."""


def gold_fault(answer: str) -> str | None:
    """Why accuracy cannot be judged against this gold answer; None if it can: the answer is no solution, and
    it is words, or parses, equals itself and has the value that its text says."""
    if fault := solution_fault(answer):
        return fault
    if not bounded(answer, max_chars=2000):
        return "cannot be verified"
    if canonical_number(answer) is not None or is_words(answer):
        return None
    from hora_rl.actors.verifier.equality import expressions, misreadings  # sympy takes a second

    text = bare(answer)
    golds = [gold for pairs in claimed(text, text) or [[]] for gold, _ in pairs[:1]]
    if not all(expressions.equal_totals(gold, gold) for gold in golds):
        return "cannot be verified"
    return misreadings.misreading(answer, [value for gold in golds for value, _ in gold])


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
