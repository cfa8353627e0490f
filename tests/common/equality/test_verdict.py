"""What plain text decides, what is left to math-verify, and which gold answers can be judged. Right and wrong
answers, gold answer by gold answer, are in `cases.jsonl`: those about `lenient` are completions, some of
SmolLM2-135M-Instruct cut after eight tokens, of which it takes the last number or expression."""

import json
import time
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hora_rl.common.answers import ANSWERS
from hora_rl.common.equality import bare, bounded, expressions, gold_fault, math_equal, quick_verdict

ALONE = "the answer alone, not the solution"
PLAIN = [r"\text{Evelyn}", r"\text{no solution}", "p - q", "9,6 .", r"\$5", "[1,2)"]
PLAIN += [
    r"$2$ hours and $30$ minutes",
    "1e-05",
    "inf",
    "204_5",
    "x_{12}",
    "A1",
    "12:30",
    r"\cos 2 \approx -0.4",
    "北京",
    "42个",
]
BOXED = [r"\boxed{x^2+1}", r"\boxed{(1,2)} and \boxed{(3,4)}", r"\boxed{1}\text{ and }\boxed{2}"]
MATHS = [r"$\frac{1}{2}$.", r"x<2\text{ or }x>5", r"1,2,\ldots", r"\sum_{n=1}^{7} n", r"\{x : x>2\}"]
WORDS = ["1 h ", "1 ", " ", r"\,", r"\text{ cm}", r"\text{", "a(", "=", "x=", r"\boxed{", "1,000", r"1{,}000"]
TYPEFACES = [
    "{",
    "~",
    "**",
    "<b>",
    r"\begin{aligned}",
    r"\\",
    "12,34,",
    "]0;",
    "1'000",
    "\\frac{\\text{",
    r"\mathbf{",
    r"\text{1}",
    r"{\bf ",
    r"\color{red}",
    r"\large",
    r"x^\mathbf{",
    r"\phantom{",
    "क",
    "ি",
    "个",
    "م",
    "元 ",
]
SIGNS = ["m/", "...", "^2", "√(", "√", "sqrt", "sqrt(", "⁻", "⁹", "½", "pi", "pi ", "√( )"]
PIECES = [*"0123456789 xyei=+-^_{}()[],.;<>|!$", r"\text{", " hours ", "million", r"\frac", r"\left(", r"\in"]
PIECES += [r"\,", r"\le", r"\mathbf{", r"\text{", r"{\bf ", r"\color{red}", "个", "元", "₹", "４", "1e-05"]
HUGE = ["9⁹⁹⁹⁹⁹⁹", "(10¹⁰)!", "2^√(10^18)", "2^sqrt(10^18)", r"2^\sqrt{10^{18}}", "√(" * 20]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=25)


@pytest.mark.parametrize(
    ("gold", "fault"),
    [
        *((gold, "cannot be verified") for gold in ("", "(" * 100, "1" * 5000, r"\frac{", "9^{9^{9^9}}")),
        (r"We know that $x = \boxed{12}$", ALONE),
        (r"Thus \boxed{\frac{1}{2}}.", ALONE),
        (r"We know that \(x = 12\).", ALONE),
        (r"\boxed{12} is it", ALONE),
        (r"so \boxed{12", ALONE),
        ("She sold 48/2 = <<48/2=24>>24.\n#### 72", "a column with what follows '####' alone"),
        *((gold, "missing value") for gold in ("nan", "NaN", "<NA>")),
        ("1_0", "not as 10"),
        ("1.2.3", "as a product"),
        ("0x1F", "as a product"),
        ("(1+2j)", "not as 1+2j"),
    ],
)
def test_a_gold_answer_that_cannot_be_judged_is_refused_with_the_remedy(gold: str, fault: str) -> None:
    assert fault in (gold_fault(gold) or "")


@pytest.mark.parametrize("gold", PLAIN + BOXED + MATHS)
def test_a_gold_answer_that_parses_is_usable_in_its_wrapping(gold: str) -> None:
    assert gold_fault(gold) is None


@pytest.mark.parametrize(
    ("gold", "answer", "verdict"),
    [
        ("27", r"\boxed{27}", True),
        ("27", "The answer is 27.", True),
        ("0", "-0.0", True),
        ("1234", "12 34", False),
        ("10080", r"10,\!080", True),
        ("3103", "3, 103", None),
        ("120, 240", r"120,\,240", True),
        ("0.002", "2e-3", True),
        ("2e-3", "2e - 3", None),
        ("0.5", ".5", True),
        (r"\frac{1}{2}", r"\frac {1} {2}", True),
        (r"2 \frac{1}{2}", r"2\frac{1}{2}", True),
        ("21/2", "2 1/2", None),
        (r"\text{Evelyn}", "Evelny", False),
        ("204_5", "204", None),
        ("204_5", "204_6", False),
        ("204", "204_5", False),
        ("28", r"28\text{ million}", False),
        ("28", "x=28", True),
    ],
)
def test_plain_text_decides_what_it_can_and_no_more(gold: str, answer: str, verdict: bool | None) -> None:
    assert quick_verdict(gold, answer) is verdict


def test_bad_syntax_is_no_expression_and_short_memory_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    assert expressions.parse(r"\frac{1}{") is None
    monkeypatch.setattr(expressions, "latex2sympy", Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        expressions.parse("1")


@given(st.integers(-(10**30), 10**30), st.integers(-(10**30), 10**30))
def test_two_integers_are_equal_exactly_when_their_values_are(one: int, other: int) -> None:
    assert quick_verdict(str(one), f"{other:,}.00") is (one == other)


@given(st.text(alphabet=r"$\{}()[]boxed. 12,-+√sqrt⁴½", max_size=60))
def test_taking_an_answer_out_of_its_wrapping_ends_and_is_stable(text: str) -> None:
    assert bare(bare(text)) == bare(text)


@pytest.mark.parametrize("text", HUGE)
def test_unicode_hides_no_work(text: str) -> None:
    assert not bounded(text, 2000)


@pytest.mark.parametrize("piece", WORDS + SIGNS + TYPEFACES)
def test_what_text_decides_is_quick_on_any_text(piece: str) -> None:
    answer = (piece * 2000)[:2000]
    start = time.process_time()
    for text in (answer, "1 " + answer, answer + "1", answer + "x"):
        quick_verdict(r"2\text{ hours }30\text{ minutes}", text)
        bounded(text, 2010)
    assert time.process_time() - start < 2.0


@given(TEXTS, TEXTS)
def test_every_pair_of_texts_has_a_verdict_and_equal_texts_are_equal(gold: list, answer: list) -> None:
    assert quick_verdict("".join(gold), "".join(answer)) in (True, False, None)
    assert quick_verdict("".join(gold), "".join(gold)) is True


CASES = [json.loads(line) for line in Path(__file__).with_name("cases.jsonl").read_text("utf-8").splitlines()]
SIDES = [(c, side) for c in CASES for side in ("same", "other")]
PAIRS = [(c["about"], c["gold"], answer, side == "same") for c, side in SIDES for answer in c[side]]
CLASSES = {
    "repeating", "complex", "logarithm", "powers of ten", "angles", "percentages", "options", "counted",
    "typeface", "currency", "counters",
}  # fmt: skip
"""Ways in which models write, each with at least twelve pairs that are equal and twelve that are not."""


@pytest.mark.parametrize(("about", "gold", "answer", "right"), PAIRS)
def test_an_answer_is_judged_as_the_table_says(about: str, gold: str, answer: str, right: bool) -> None:
    if about == "lenient":
        answer = ANSWERS["lenient"](answer) or ""
    assert math_equal(gold, answer) is right
    if about in CLASSES | {"lenient"} and right:
        assert bounded(answer, 2000)
        assert gold_fault(gold) is None
    if about in ("notation", "typeface") and right:
        assert math_equal(answer, gold)
    if about == "words" and not right and not any(c == "-" or c.isdigit() for c in gold):
        assert quick_verdict(gold, answer) is False, "plain words need no mathematics"
        assert gold_fault(gold) is None


def test_each_class_has_twelve_cases_and_its_near_misses() -> None:
    found = Counter((about, right) for about, _, _, right in PAIRS)
    assert min(found[name, right] for name in CLASSES for right in (True, False)) >= 12
