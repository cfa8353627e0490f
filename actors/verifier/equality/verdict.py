"""Whether an answer equals the gold answer: decided by text if possible, otherwise by mathematics.

gold, answer ─► bare texts ─► equal? numbers? words? ─► verdict
                └─ claimed value (claims) ─► its unit (units) ─► expressions.equal ─► verdict
"""

from fractions import Fraction

from hora_rl.actors.verifier.equality.claims import claim
from hora_rl.actors.verifier.equality.notation import named
from hora_rl.actors.verifier.equality.numerals import canonical_number, other_base
from hora_rl.actors.verifier.equality.texts import bare, tight
from hora_rl.actors.verifier.equality.units import Total, in_one_style, totals
from hora_rl.actors.verifier.equality.words import option_verdict, spelt_set, unworded, word_verdict

Verdict = bool | None
"""None: the texts do not decide."""
Pairs = list[list[tuple[Total, Total]]]
"""All claimed values must be right. A value is right if one of its (gold, answer) pairs is equal."""


def equal(gold: str, answer: str, maths: bool = False) -> Verdict:
    """Whether `answer` equals `gold`; without `maths` None if math-verify must decide.

    Texts decide for equal text up to spacing, two numbers with units, words, numerals in two bases, and
    answers that claim no value: in linear time, also on hostile text. With `maths` time and memory are
    unbounded: call it for a model's answers only in the killable processes of `actors.verifier.pool`."""
    gold, answer = in_one_style(bare(gold), bare(answer))
    verdict = _by_text(gold, answer)
    if verdict is not None:
        return verdict
    pairs = claimed(bare(gold), bare(answer))
    if pairs is None or not all(pairs):
        return False
    verdicts = [_by_number(readings) for readings in pairs]
    if False in verdicts:
        return False
    if None not in verdicts:
        return True
    return _by_maths(pairs) if maths else None


def _by_maths(pairs: Pairs) -> bool:
    from hora_rl.actors.verifier.equality import expressions  # sympy takes a second

    return all(any(expressions.equal_totals(*reading) for reading in readings) for readings in pairs)


def _by_text(gold: str, answer: str) -> Verdict:
    # Spacing distinguishes a list from a number.
    numbers = canonical_number(gold), canonical_number(answer)
    if numbers[0] is not None and numbers[1] is not None:
        return numbers[0] == numbers[1]
    if tight(unworded(bare(gold))) == tight(unworded(bare(answer))):
        return True
    for judge in (option_verdict, word_verdict):
        if (verdict := judge(gold, answer)) is not None:
            return verdict
    return None


def claimed(gold: str, answer: str) -> Pairs | None:
    """The values that the answer claims, each with the gold answer; None if it claims none."""
    gold, answer = spelt_set(gold) or named(gold), spelt_set(answer) or named(answer)
    values = claim(gold, answer)
    if values is None or any(other_base(tight(gold), tight(value)) for value in values):
        return None
    return [totals(gold, value) for value in values]


def _by_number(pairs: list[tuple[Total, Total]]) -> Verdict:
    """Whether one pair is equal, if all sides are plain numbers; None otherwise."""
    sums = [(_number(left), _number(right)) for left, right in pairs]
    if any(left is None or right is None for left, right in sums):
        return None
    return any(left == right for left, right in sums)


def _number(total: Total) -> Fraction | None:
    numbers = [(canonical_number(value), factor) for value, factor in total]
    if any(number is None for number, _ in numbers):
        return None
    return sum((Fraction(number) * factor for number, factor in numbers if number), Fraction(0))
