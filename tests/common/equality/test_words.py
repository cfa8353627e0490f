"""Answers in plain words are words, not products of letters."""

from __future__ import annotations

import pytest

from common.equality import gold_fault, math_equal, quick_verdict

SAME = [
    ("hello", "Hello"),
    ("hello", r"\text{hello}"),
    ("hello", "The answer is hello."),
    ("hello", "x = hello"),
    ("the cat", "the  cat."),
    ("the cat", r"\text{the}\ \text{cat}"),
    ("n is odd", r"n\text{ is odd}"),
    ("abc", "a b c"),
    ("ABCD", r"$\text{ABCD}$"),
    ("XIV", "xiv"),
    ("NaCl", r"\mathrm{NaCl}"),
    ("AB", "x = AB"),
    ("No", "no"),
    ("São Paulo", "são paulo"),
    ("Mary, John", "John and Mary"),
    ("red or blue", "blue or red"),
    ("Simpson's rule", "simpson's rule"),
    ("tan", r"\text{tan}"),
    ("twenty-one", "Twenty-one"),
    ("3 cats", r"3\text{ cats}"),
    ("3 cats", "3.0 cats"),
    ("3 cats, 2 dogs", "2 dogs, 3 cats"),
    ("3 meters", "3"),
    ("3 meters", "300 cm"),
    ("2 hours 30 minutes", "150 minutes"),
    ("3 million", "3000000"),
    ("10 percent", r"10\%"),
    ("xy", "yx"),
    ("x and y", "y, x"),
    ("2xyz", "2zyx"),
    ("abc + 1", "1 + acb"),
    (r"\frac{abc}{4R}", r"\frac{cba}{4R}"),
    ("infinity", r"\infty"),
    ("no solution", r"\emptyset"),
    ("2025-01-02", r"\text{2025-01-02}"),
]
OTHER = [
    ("hello", "olleh"),
    ("hello", "o*l*l*e*h"),
    ("hello", "x = olleh"),
    ("hello", r"\text{olleh}"),
    ("stop", "post"),
    ("Mary", "Army"),
    ("left", "felt"),
    ("No", "On"),
    ("XIV", "XVI"),
    ("ABCD", "BDAC"),
    ("ABCD", r"B \cdot D \cdot A \cdot C"),
    ("AC", "CA"),
    ("NaCl", "ClNa"),
    ("the cat", "that ec"),
    ("dog bites man", "man bites dog"),
    ("Mary, John", "Army, John"),
    ("Mary and John", "Mary"),
    ("red", "red or blue"),
    ("twenty-one", "twenty-neo"),
    ("tan", "nat"),
    ("3 cats", "3 acts"),
    ("3 cats", "4 cats"),
    ("3 cats", "3"),
    ("3 cats, 2 dogs", "3 acts, 2 gods"),
    ("3 cats, 2 dogs", "2 cats, 3 dogs"),
    ("2025-01-02", "2025-02-01"),
    ("2025-01-02", "2022"),
]


@pytest.mark.parametrize(("gold", "answer"), SAME)
def test_the_same_words_are_right(gold: str, answer: str) -> None:
    assert math_equal(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), OTHER)
def test_the_same_letters_in_another_order_are_other_words(gold: str, answer: str) -> None:
    assert not math_equal(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), [pair for pair in OTHER if not any(map(str.isdigit, pair[0]))])
def test_plain_words_need_no_mathematics(gold: str, answer: str) -> None:
    if "-" not in gold:
        assert quick_verdict(gold, answer) is False
        assert gold_fault(gold) is None
