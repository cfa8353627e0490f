"""Whether an answer equals the gold answer: decided by text if possible, otherwise by mathematics.

    gold, answer ─► bare texts ─► equal? numbers? words? ─► verdict
                    └─ claimed value (statements) ─► its unit (units) ─► expressions.equal ─► verdict

`quick_verdict` takes linear time and is safe on hostile text. `math_equal` may not end, or may use all
memory: call it for a model's answers only in the killable processes of `actors.verifier.pool`."""

from fractions import Fraction

from hora_rl.common.equality.notation import named
from hora_rl.common.equality.numerals import canonical_number, other_base
from hora_rl.common.equality.sizes import bounded
from hora_rl.common.equality.solutions import solution_fault
from hora_rl.common.equality.statements import claim
from hora_rl.common.equality.texts import bare, tight
from hora_rl.common.equality.units import Total, in_one_style, totals
from hora_rl.common.equality.words import is_words, option_verdict, spelt_set, unworded, word_verdict

Pairs = list[list[tuple[Total, Total]]]
"""All claimed values must be right. A value is right if one of its (gold, answer) pairs is equal."""


def gold_fault(answer: str) -> str | None:
    """Why accuracy cannot be judged against this gold answer; None if it can: the answer is no solution, and
    it is words, or parses, equals itself and has the value that its text says.

    Only for trusted answers of a data set, because the cost may be unbounded."""
    if fault := solution_fault(answer):
        return fault
    if not bounded(answer, max_chars=2000):
        return "cannot be verified"
    if canonical_number(answer) is not None or is_words(answer):
        return None
    from hora_rl.common.equality.misreadings import misreading

    values = _gold_values(bare(answer))
    return "cannot be verified" if values is None else misreading(answer, values)


def _gold_values(answer: str) -> list[str] | None:
    """The texts of the values of a gold answer; None if one of them does not equal itself."""
    from hora_rl.common.equality import expressions

    golds = [gold for pairs in _claims(answer, answer) or [[]] for gold, _ in pairs[:1]]
    same = all(expressions.equal_totals(gold, gold) for gold in golds)
    return [value for gold in golds for value, _ in gold] if same else None


def quick_verdict(gold: str, answer: str) -> bool | None:
    """The verdict if the text decides it; None if math-verify must decide.

    The text decides for equal text up to spacing, two numbers with units, words, numerals in two bases, and
    answers that claim no value."""
    gold, answer = in_one_style(bare(gold), bare(answer))
    verdict = _by_text(gold, answer)
    if verdict is not None:
        return verdict
    claims = _claims(bare(gold), bare(answer))
    if claims is None or not all(claims):
        return False
    verdicts = [_by_number(pairs) for pairs in claims]
    if False in verdicts:
        return False
    return True if None not in verdicts else None


def math_equal(gold: str, answer: str) -> bool:
    """The verdict of math-verify. Time and memory are unbounded: call it in a killable process."""
    from hora_rl.common.equality import expressions

    gold, answer = in_one_style(bare(gold), bare(answer))
    verdict = quick_verdict(gold, answer)
    if verdict is not None:
        return verdict
    return all(
        any(expressions.equal_totals(one, other) for one, other in pairs)
        for pairs in _claims(bare(gold), bare(answer)) or []
    )


def _by_text(gold: str, answer: str) -> bool | None:
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


def _claims(gold: str, answer: str) -> Pairs | None:
    gold, answer = spelt_set(gold) or named(gold), spelt_set(answer) or named(answer)
    values = claim(gold, answer)
    if values is None or any(other_base(tight(gold), tight(value)) for value in values):
        return None
    return [totals(gold, value) for value in values]


def _by_number(pairs: list[tuple[Total, Total]]) -> bool | None:
    """Whether one pair is equal, if all sides are plain numbers; None otherwise."""
    sums = [(_number(one), _number(other)) for one, other in pairs]
    if any(one is None or other is None for one, other in sums):
        return None
    return any(one == other for one, other in sums)


def _number(total: Total) -> Fraction | None:
    numbers = [(canonical_number(value), factor) for value, factor in total]
    if any(number is None for number, _ in numbers):
        return None
    return sum((Fraction(number) * factor for number, factor in numbers if number), Fraction(0))
