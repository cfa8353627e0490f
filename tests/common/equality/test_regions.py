"""Sets of real numbers are the same in any writing."""

from __future__ import annotations

import pytest

from common.equality import math_equal

SAME = [
    ("[-2,7]", r"-2\le x\le 7"),
    (r"-2\le x\le 7", "[-2,7]"),
    ("[-2,7]", r"x\in[-2,7]"),
    ("[-2,7]", r"\{x : -2 \le x \le 7\}"),
    ("[-2,7]", r"\{x \in \mathbb{R} \mid -2 \le x \le 7\}"),
    ("[-2,7]", r"x \ge -2 \text{ and } x \le 7"),
    ("[-2,7]", r"x \geq -2, x \leq 7"),
    ("[-2,7]", r"7 \ge x \ge -2"),
    (r"(-\infty,2)", "x<2"),
    ("x<2", r"(-\infty,2)"),
    ("x<2", r"\left(-\infty,2\right)"),
    ("x<2", "2>x"),
    ("x<2", r"x \in (-\infty, 2)"),
    (r"[2,\infty)", r"x\ge 2"),
    (r"[2,\infty)", "x ≥ 2"),
    (r"(0,\frac{1}{2}]", r"0 < x \le \frac{1}{2}"),
    (r"(-\infty,2)\cup(5,\infty)", r"x<2 \text{ or } x>5"),
    (r"x<2 \text{ or } x>5", r"(-\infty,2)\cup(5,\infty)"),
    (r"(-\infty,2)\cup(5,\infty)", r"x>5 \text{ or } x<2"),
    (r"(-\infty,3)\cup(3,\infty)", r"x\ne 3"),
    (r"\mathbb{R}", r"(-\infty,\infty)"),
    (r"\mathbb{R}", r"\text{all real numbers}"),
    (r"\emptyset", r"\varnothing"),
    (r"\varnothing", r"\emptyset"),
    (r"\emptyset", r"\{\}"),
    (r"\emptyset", "∅"),
    (r"\emptyset", r"\text{no solution}"),
    (r"\text{No solution}", r"\emptyset"),
    (r"\text{no solutions}", "no solution"),
    ("(1,2)", r"1<x<2"),
    (r"\left[\frac{1}{3},2\right]", r"\frac13 \le t \le 2"),
]
DIFFERENT = [
    ("[-2,7]", "-2<x<7"),
    ("[-2,7]", r"-2\le x<7"),
    ("[-2,7]", r"-2\le x\le 8"),
    ("[-2,7]", r"x\le 7"),
    ("[-2,7]", r"x\ge -2 \text{ or } x \le 7"),
    ("[-2,7]", "(-2,7)"),
    ("[-2,7]", r"\{-2,7\}"),
    (r"(-\infty,2)", r"x\le 2"),
    (r"(-\infty,2)", "x>2"),
    (r"(-\infty,2)", "x<3"),
    (r"(-\infty,2)", "2"),
    ("x<2", r"(-\infty,2]"),
    ("x<2", "y<2"),
    ("x<2", "x>2"),
    ("x<2", "x=2"),
    ("x<2", "2"),
    (r"(-\infty,2)\cup(5,\infty)", r"2<x<5"),
    (r"(-\infty,2)\cup(5,\infty)", r"x<2 \text{ and } x>5"),
    (r"(-\infty,2)\cup(5,\infty)", r"x<2"),
    (r"(-\infty,3)\cup(3,\infty)", r"x = 3"),
    (r"\mathbb{R}", r"(0,\infty)"),
    (r"\emptyset", "0"),
    (r"\emptyset", r"\{0\}"),
    (r"\emptyset", r"\mathbb{R}"),
    (r"\text{no solution}", "0"),
    ("[1,2]", r"1 \le 2"),
]
SAME_NUMBER = [
    ("1000", "1 000"),
    ("1000", r"1\,000"),
    ("1000", "1{,}000"),
    ("1000", "1,000"),
    ("1000", r"1\ 000"),
    ("1000", "1~000"),
    ("1000", "1\u202f000"),
    ("1000", "1\u00a0000"),
    ("1 000", "1000"),
    ("10{,}000", r"10\,000"),
    (r"10\,000", "10{,}000"),
    ("10,000", "10 000"),
    ("1234567", "1 234 567"),
    ("1234567", r"1\,234\,567"),
    ("1234567", "1{,}234{,}567"),
    ("1234567.5", "1 234 567.5"),
    ("-1000", "-1 000"),
    ("1000", r"1{\,}000"),
    (r"10\,000\pi", r"10{,}000\pi"),
    (r"10000\pi", r"10\,000 \pi"),
    (r"\frac{1}{1000}", r"\frac{1}{1\,000}"),
    ("1000", r"1 000\text{ m}"),
    ("1000", r"x = 1 000"),
]
OTHER_NUMBER = [
    ("1000", "1 00"),
    ("1000", "1 0 0 0"),
    ("1000", "10 00"),
    ("1234", "12 34"),
    ("1234", "1 23 4"),
    ("1000", "1, 000"),
    ("1000", "1; 000"),
    ("1", "1 000"),
    ("1", "1 001"),
    ("1001", "1 + 001"),
    ("1000", "1 0000"),
    ("10000", "1 000"),
    ("1000", "1.000"),
    ("1000", r"1 \cdot 000"),
    ("3103", "3, 103"),
    ("3, 103", "3103"),
    ("1234567", "1 234 568"),
    ("1234567", "1 234567"),
    ("0.123", "0 123"),
    ("1000.5", "1 000 5"),
]


@pytest.mark.parametrize(("gold", "answer"), SAME)
def test_the_same_set_is_right_as_interval_inequality_or_words(gold: str, answer: str) -> None:
    assert math_equal(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_another_set_is_wrong(gold: str, answer: str) -> None:
    assert not math_equal(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), SAME_NUMBER)
def test_groups_of_three_digits_are_one_number(gold: str, answer: str) -> None:
    assert math_equal(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), OTHER_NUMBER)
def test_other_spaces_between_digits_make_no_number(gold: str, answer: str) -> None:
    assert not math_equal(gold, answer)
