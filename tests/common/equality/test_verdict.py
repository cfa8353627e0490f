"""What plain text decides, and what is left to math-verify."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hora_rl.common.equality import bare, gold_fault, math_equal, quick_verdict


@pytest.mark.parametrize("answer", ["", "(" * 100, "1" * 5000, r"\frac{", "1 +", "9^{9^{9^9}}"])
def test_a_gold_answer_that_cannot_be_judged_is_not_usable(answer: str) -> None:
    assert gold_fault(answer) is not None


@pytest.mark.parametrize(
    "answer",
    [
        "27.0",
        "-3",
        r"\frac{1}{2}",
        r"\text{Evelyn}",
        "x^2+1",
        "[1,2)",
        "p - q",
        "9,6 .",
        r"$\frac{1}{2}$.",
        r"\boxed{x^2+1}",
        r"5\text{ ft }6\text{ in}",
        r"x<2\text{ or }x>5",
        r"1,2,\ldots",
        r"\sum_{n=1}^{7} n",
        "x=5",
        r"\emptyset",
        r"\text{no solution}",
        r"\{x : x>2\}",
    ],
)
def test_a_gold_answer_that_parses_is_usable(answer: str) -> None:
    assert gold_fault(answer) is None


@pytest.mark.parametrize(
    ("gold", "answer", "verdict"),
    [
        ("27", "27.0", True),
        ("27", r"\boxed{27}", True),
        ("27", "$27$.", True),
        ("27", "The answer is 27.", True),
        ("27", "+027", True),
        ("27", "27.5", False),
        ("0", "-0.0", True),
        ("1234", "1,234", True),
        ("1234", r"1\,234", True),
        ("1234", "12 34", False),
        ("10080", r"10,\!080", True),
        ("3103", "3, 103", None),
        ("3, 103", "3103", None),
        ("120, 240", "240, 120", None),
        ("120, 240", r"120,\,240", True),
        ("3103", r"3,\ 103", None),
        ("0.002", "2e-3", None),
        ("0.5", ".5", True),
        (r"\frac{1}{2}", r"\frac {1} {2}", True),
        (r"2 \frac{1}{2}", r"2\frac{1}{2}", True),
        ("21/2", "2 1/2", None),
        (r"\text{Evelyn}", "evelyn", True),
        (r"\text{Evelyn}", "Evelny", False),
        (r"\frac{1}{2}", "0.5", None),
        ("204_5", "204_{5}", None),
        ("204_5", "204", None),
        ("204_5", "204_6", False),
        ("204", "204_5", False),
        ("204", "204_{10}", None),
        ("28", "x=28_9", False),
        ("28", r"28\text{ cm}", True),
        ("28", r"28\text{ million}", False),
        ("28", "x=28", True),
        ("28", "x^2=28", False),
    ],
)
def test_plain_text_decides_what_it_can_and_no_more(gold: str, answer: str, verdict: bool | None) -> None:
    assert quick_verdict(gold, answer) is verdict


@given(st.integers(-(10**30), 10**30), st.integers(-(10**30), 10**30))
def test_two_integers_are_equal_exactly_when_their_values_are(one: int, other: int) -> None:
    assert quick_verdict(str(one), f"{other:,}.00") is (one == other)


@given(st.text(alphabet=r"$\{}()[]boxed. 12,-+", max_size=60))
def test_taking_an_answer_out_of_its_wrapping_ends_and_is_stable(text: str) -> None:
    assert bare(bare(text)) == bare(text)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\frac{1}{2}", "0.5"),
        ("x+1", "1+x"),
        (r"\left(3, \frac{\pi}{2}\right)", r"(3,\pi/2)"),
        ("5", r"5\text{ cm}"),
    ],
)
def test_the_same_value_in_another_writing_is_right(gold: str, answer: str) -> None:
    assert math_equal(gold, answer)


@pytest.mark.parametrize(
    "answer", ["27 or 28", "27, 28", r"\boxed{27} or \boxed{28}", "$27$ $28$", "27 < 28", "27 = x = 28"]
)
@pytest.mark.parametrize("gold", ["27", "28"])
def test_an_answer_that_lists_guesses_is_wrong(gold: str, answer: str) -> None:
    assert not quick_verdict(gold, answer)
    assert not math_equal(gold, answer)


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [("3, 103", "3103", False), ("3103", "3, 103", False), ("120, 240", "240, 120", True)],
)
def test_a_list_of_numbers_is_not_one_number_with_thousands_commas(
    gold: str, answer: str, right: bool
) -> None:
    verdict = quick_verdict(gold, answer)
    assert (math_equal(gold, answer) if verdict is None else verdict) is right


@pytest.mark.parametrize("answer", ["27 = 28", r"\frac{54}{2} = 28", "27 = x = 28"])
def test_every_value_in_an_equation_must_be_the_gold_answer(answer: str) -> None:
    assert not math_equal("28", answer)


@pytest.mark.parametrize(
    "piece",
    [
        "1 h ",
        "1 ",
        " ",
        r"\,",
        r"\text{ cm}",
        r"\text{",
        "a(",
        "=",
        "x=",
        r"\boxed{",
        "1,000",
        r"1{,}000",
        "m/",
        "...",
        "^2",
    ],
)
def test_what_text_decides_is_quick_on_any_text(piece: str) -> None:
    answer = (piece * 2000)[:2000]
    start = time.perf_counter()
    for text in (answer, "1 " + answer, answer + "1", answer + "x"):
        quick_verdict(r"2\text{ hours }30\text{ minutes}", text)
    assert time.perf_counter() - start < 2.0


PIECES = [
    *"0123456789 xyei=+-^_{}()[],.;<>|!",
    r"\text{",
    " hours ",
    "million",
    r"\frac",
    r"\left(",
    r"\in",
    r"\,",
    "$",
    r"\le",
]


@given(st.lists(st.sampled_from(PIECES), max_size=25), st.lists(st.sampled_from(PIECES), max_size=25))
def test_every_pair_of_texts_has_a_verdict_and_equal_texts_are_equal(
    gold: list[str], answer: list[str]
) -> None:
    assert quick_verdict("".join(gold), "".join(answer)) in (True, False, None)
    assert quick_verdict("".join(gold), "".join(gold)) is True
