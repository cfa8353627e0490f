"""Numbers are compared relative to their size."""

from __future__ import annotations

import pytest

from common.equality import math_equal

SAME = [
    (r"\frac{1}{2^{99}}", "2^{-99}"),
    (r"\frac{1}{2^{99}}", r"\frac{1}{2^{100}}\cdot 2"),
    (r"\frac{1}{2^{99}}", r"\left(\frac{1}{2}\right)^{99}"),
    (r"\frac{1}{1000000}", "0.000001"),
    (r"\frac{1}{1000000}", "10^{-6}"),
    (r"\frac{1}{1000000}", r"1\times 10^{-6}"),
    (r"\frac{1}{1024}", "0.0009765625"),
    (r"\frac{1}{1024}", "2^{-10}"),
    (r"\frac{1}{3}", "0.333333"),
    (r"\frac{1}{7}", "0.142857"),
    (r"\frac{1}{81}", "0.012346"),
    (r"\frac{1}{81}", "0.0123456790"),
    (r"\frac{2}{3}", "0.6666667"),
    (r"\sqrt{2}", "1.414214"),
    (r"\pi", "3.14159265"),
    (r"\pi", r"3.14159265\ldots"),
    ("0", r"\sqrt{2}\sqrt{3}-\sqrt{6}"),
    ("0", r"\sin\pi"),
    ("0", "0.000"),
    (r"10^{-7}x", r"\frac{x}{10000000}"),
    (r"10^{-7}x+1", r"1+\frac{x}{10^7}"),
    (r"\left(10^{-8}, 1\right)", r"\left(\frac{1}{10^8}, 1\right)"),
    (r"\{10^{-8}, 1\}", r"\{1, 0.00000001\}"),
    (r"\begin{pmatrix}10^{-9}\\1\end{pmatrix}", r"\begin{pmatrix}\frac{1}{10^9}\\1\end{pmatrix}"),
    (r"\sum_{n=1}^{\infty}\frac{1}{n^2}", r"\sum_{k=1}^{\infty}\frac{1}{k^2}"),
    (r"\binom{100}{50}^{-1}", r"\frac{50!50!}{100!}"),
]
DIFFERENT = [
    (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
    (r"\frac{1}{2^{99}}", "0.0"),
    (r"\frac{1}{2^{99}}", "0"),
    (r"\frac{1}{2^{99}}", r"-\frac{1}{2^{99}}"),
    ("0", r"\frac{1}{2^{99}}"),
    (r"\frac{1}{1000000}", "0.0000012"),
    (r"\frac{1}{1000000}", "0.0000011"),
    (r"\frac{1}{1000000}", "0"),
    (r"\frac{1}{1000000}", "0.00000101"),
    (r"\frac{3}{10^{8}}", r"\frac{2}{10^{8}}"),
    (r"\frac{1}{1024}", "0.001"),
    (r"\frac{1}{1024}", "0.0009770"),
    (r"\frac{1}{3}", "0.33"),
    (r"\frac{1}{3}", "0.3334"),
    (r"\sqrt{2}\cdot 10^{-9}", r"\sqrt{3}\cdot 10^{-9}"),
    (r"\pi\cdot 10^{-20}", "0"),
    (r"e^{-50}", r"e^{-51}"),
    (r"10^{-20}x", r"2\cdot 10^{-20}x"),
    (r"\frac{x}{2^{99}}", r"\frac{x}{2^{98}}"),
    (r"\left(10^{-8}, 1\right)", r"\left(10^{-9}, 1\right)"),
    (r"\{10^{-8}, 1\}", r"\{1, 0.00000002\}"),
    (r"\begin{pmatrix}10^{-9}\\1\end{pmatrix}", r"\begin{pmatrix}0\\1\end{pmatrix}"),
    (r"\left[10^{-9}, 1\right]", r"\left[0, 1\right]"),
    (r"\frac{1}{100!}", r"\frac{1}{99!}"),
]


@pytest.mark.parametrize(("gold", "answer"), SAME)
def test_equal_numbers_of_any_size_are_equal(gold: str, answer: str) -> None:
    assert math_equal(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_small_numbers_differ_by_their_own_size(gold: str, answer: str) -> None:
    assert not math_equal(gold, answer)
