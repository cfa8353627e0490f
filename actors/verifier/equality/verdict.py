"""Whether an answer equals the gold answer: decided by text if possible, otherwise by mathematics.

gold, answer ─► bare texts ─► equal? numbers? words? ─► verdict
                └─ claimed value (claims) ─► its unit (units) ─► expressions.equal ─► verdict

`gold_fault`: why accuracy cannot be judged against a gold answer of a data set, which is trusted: the cost
may be unbounded.
"""

import re
from fractions import Fraction

from hora_rl.actors.verifier.equality import claims, texts
from hora_rl.actors.verifier.equality.notation import TEXT, named
from hora_rl.actors.verifier.equality.sizes import bounded
from hora_rl.actors.verifier.equality.units import Total, in_one_style, is_unit_word, totals

Verdict = bool | None
"""None: the texts do not decide."""
Pairs = list[list[tuple[Total, Total]]]
"""All claimed values must be right. A value is right if one of its (gold, answer) pairs is equal."""
_SEPARATORS = re.compile(
    rf"(?:{texts.SPACE}|[,;$]|\\[()\[\]]|\b(?:and|or)\b|{TEXT}\{{[\s,]*(?:and|or)?[\s,]*\}})*"
)
_FORMULA = re.compile(r"(?<!\\)\$[^$]+(?<!\\)\$|\\\(.+?\\\)", re.DOTALL)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]+")
_MISSING = frozenset({"nan", "NaN", "<NA>", "NaT"})
"""What pandas writes for a missing value."""
_SENTENCE = 3
"""Number of words around a formula that make a sentence, without units."""


def equal(gold: str, answer: str, maths: bool = False) -> Verdict:
    """Whether `answer` equals `gold`; without `maths` None if math-verify must decide.

    Texts decide for equal text up to spacing, two numbers with units, words, numerals in two bases, and
    answers that claim no value: in linear time, also on hostile text. With `maths` time and memory are
    unbounded: call it for a model's answers only in the killable processes of `actors.verifier.pool`."""
    gold, answer = in_one_style(texts.bare(gold), texts.bare(answer))
    verdict = _by_text(gold, answer)
    if verdict is not None:
        return verdict
    pairs = claimed(texts.bare(gold), texts.bare(answer))
    if pairs is None or not all(pairs):
        return False
    verdicts = [_by_number(readings) for readings in pairs]
    if False in verdicts:
        return False
    if None not in verdicts:
        return True
    if not maths:
        return None
    from hora_rl.actors.verifier.equality import expressions  # sympy takes a second

    return all(any(expressions.equal_totals(*reading) for reading in readings) for readings in pairs)


def _by_text(gold: str, answer: str) -> Verdict:
    # Spacing distinguishes a list from a number.
    numbers = texts.canonical_number(gold), texts.canonical_number(answer)
    if numbers[0] is not None and numbers[1] is not None:
        return numbers[0] == numbers[1]
    if texts.tight(claims.unworded(texts.bare(gold))) == texts.tight(claims.unworded(texts.bare(answer))):
        return True
    for judge in (claims.option_verdict, claims.word_verdict):
        if (verdict := judge(gold, answer)) is not None:
            return verdict
    return None


def claimed(gold: str, answer: str) -> Pairs | None:
    """The values that the answer claims, each with the gold answer; None if it claims none."""
    gold, answer = claims.spelt_set(gold) or named(gold), claims.spelt_set(answer) or named(answer)
    values = claims.claim(gold, answer)
    if values is None or any(texts.other_base(texts.tight(gold), texts.tight(value)) for value in values):
        return None
    return [totals(gold, value) for value in values]


def _by_number(pairs: list[tuple[Total, Total]]) -> Verdict:
    """Whether one pair is equal, if all sides are plain numbers; None otherwise."""
    sums = [(_number(left), _number(right)) for left, right in pairs]
    if any(left is None or right is None for left, right in sums):
        return None
    return any(left == right for left, right in sums)


def _number(total: Total) -> Fraction | None:
    numbers = [(texts.canonical_number(value), factor) for value, factor in total]
    if any(number is None for number, _ in numbers):
        return None
    return sum((Fraction(number) * factor for number, factor in numbers if number), Fraction(0))


def gold_fault(answer: str) -> str | None:
    """Why accuracy cannot be judged against this gold answer; None if it can: the answer is no solution, and
    it is words, or parses, equals itself and has the value that its text says."""
    if fault := solution_fault(answer):
        return fault
    if not bounded(answer, max_chars=2000):
        return "cannot be verified"
    if texts.canonical_number(answer) is not None or claims.is_words(answer):
        return None
    from hora_rl.actors.verifier.equality import expressions, misreadings  # sympy takes a second

    text = texts.bare(answer)
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
    text = texts.unwrapped(gold)
    if (texts.BOXED in text and _around_boxes(text)) or _is_sentence(text):
        return "cannot be verified (give the answer alone, not the solution)"
    return None


def _around_boxes(text: str) -> bool:
    """Whether text other than commas and "and" surrounds the boxes."""
    while (start := text.rfind(texts.BOXED)) >= 0:
        end = texts.closing_brace(text, start + len(texts.BOXED) - 1)
        text = f"{text[:start]} {text[end + 1 :] if end >= 0 else ''}"
    return _SEPARATORS.fullmatch(text) is None


def _is_sentence(text: str) -> bool:
    if not _FORMULA.search(text):
        return False
    words = [word for word in _WORD.findall(_FORMULA.sub(" ", text)) if word not in ("and", "or")]
    return sum(not is_unit_word(word) for word in words) >= _SENTENCE
