"""The verifier against the 600 gold answers of the shipped benchmarks. Decisions:
docs/reference/rewards.md."""

import itertools
import random
import re
import time
from collections.abc import Iterator

import pytest

from hora_rl.actors.data.datasets import load_dataset
from hora_rl.actors.verifier.equality import bare, equal, expressions, gold_fault
from hora_rl.actors.verifier.equality.texts import canonical_number
from hora_rl.common.config import DataConfig
from hora_rl.evaluation.benchmarks import BENCHMARKS

pytestmark = pytest.mark.system

GOLDS = [row.answer for b in BENCHMARKS.values() for row in load_dataset(b.data(DataConfig(path="x"))).rows]
DISTINCT = list(dict.fromkeys(GOLDS))

# What math-verify calls equal although the problems differ, all of it accepted: see
# docs/reference/rewards.md.
ACCEPTED = {("1,-2", "(-2,1)"), ("-2,1", "(-2,1)"), ("(-2,1)", "-2,1")}
ACCEPTED |= {("x=5", "5"), ("5", "x=5"), ("40_9", "40"), ("204_5", "204")}


def judged(gold: str, answer: str) -> bool:
    return equal(gold, answer, maths=True) is True


def rewritings(gold: str) -> Iterator[str]:
    """Other ways in which a person or a model writes the same answer."""
    yield rf"\boxed{{{gold}}}"
    yield f"${gold}$"
    yield rf"\[ {gold} \]"
    yield f"The answer is {gold}."
    yield rf"\displaystyle {gold}"
    yield f"\n  {gold}  \n"
    yield gold.replace("\\frac", "\\dfrac")
    yield gold.replace("\\dfrac", "\\frac").replace("\\frac", "\\tfrac")
    yield gold.replace("\\left", "").replace("\\right", "")
    yield re.sub(r"([=+,])", r" \1 ", gold)
    yield gold.replace(", ", ",").replace(" + ", "+").replace(" - ", "-")
    if number := canonical_number(gold):
        yield f"{number}0" if "." in number else f"{number}.0"
        yield f"{int(number):,}" if "." not in number else number
        yield f"x = {number}"
        yield rf"{number}\text{{ cm}}"
        yield rf"{number} \text{{ units}}"
        yield rf"{number}^\circ"
    if fraction := re.fullmatch(r"(-?)\\d?frac\{(\d+)\}\{(\d+)\}", gold):
        sign, top, bottom = fraction.groups()
        yield f"{sign}{top}/{bottom}"
        yield repr(float(f"{sign}1") * int(top) / int(bottom))


def same(one: str, other: str) -> bool:
    """Whether two gold answers mean the same: units, degrees, currency, order of a list and spacing aside."""

    def plain(text: str) -> object:
        text = re.sub(r"\^\\circ|\\\$|\\mbox\{.*|\\text\{.*?\}|\\!|\s", "", bare(text))
        text = text.replace("frac14", "frac{1}{4}")
        number = canonical_number(text)
        return number if number is not None else sorted(text.split(",")) if text[0] not in "([" else text

    return plain(one) == plain(other)


def wrongly_equal(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Pairs (gold, answer) of different meaning that are called right."""
    return [pair for pair in pairs if judged(*pair) and pair not in ACCEPTED and not same(*pair)]


def near_pairs() -> list[tuple[str, str]]:
    """Answers that share their digits in any order: those most easily taken for each other."""

    def digits(text: str) -> str:
        return "".join(sorted(re.sub(r"\D|(?<!\d)0+(?=\d)", "", text)))

    ordered = itertools.permutations(DISTINCT, 2)
    return [(g, a) for g, a in ordered if digits(g) == digits(a) and len(g) < 20 and len(a) < 20]


def test_all_600_are_there_and_usable_and_equal_themselves_by_math_verify_alone() -> None:
    assert len(GOLDS) == 600
    assert [gold for gold in DISTINCT if gold_fault(gold)] == []
    assert [gold for gold in DISTINCT if not expressions.equal(gold, gold)] == []


def test_every_gold_answer_equals_all_of_its_rewritings_in_good_time() -> None:
    slowest = 0.0
    for gold in DISTINCT:
        for answer in rewritings(gold):
            start = time.process_time()
            assert judged(gold, answer), (gold, answer)
            slowest = max(slowest, time.process_time() - start)
    assert slowest < 5.0


def test_no_gold_answer_equals_one_of_another_meaning_but_for_those_that_are_accepted() -> None:
    assert [pair for pair in ACCEPTED if not judged(*pair)] == []
    pairs = random.Random(0).sample(list(itertools.permutations(DISTINCT, 2)), 300)
    assert wrongly_equal(pairs) == []


@pytest.mark.slow
def test_no_gold_answer_equals_a_similar_one_or_any_of_a_larger_sample() -> None:
    rest = random.Random(1).sample(list(itertools.permutations(DISTINCT, 2)), 3000)
    assert wrongly_equal([*near_pairs(), *rest]) == []
