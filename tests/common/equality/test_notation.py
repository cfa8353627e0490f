"""Unicode mathematics and plain names are what their LaTeX is."""

from __future__ import annotations

import time

import pytest

from common.equality import bare, bounded, math_equal, quick_verdict

SAME = [
    ("2*pi", r"2\pi"),
    ("2pi", r"2\pi"),
    (r"\frac{\pi}{2}", "pi/2"),
    (r"\frac{pi}{2}", "π/2"),
    (r"5\sqrt{2}", "5√2"),
    (r"5\sqrt{2}", "5√(2)"),
    (r"5\sqrt{2}", "5*sqrt(2)"),
    (r"12\sqrt{3}", "12 sqrt(3)"),
    (r"\sqrt{x+1}", "√(x+1)"),
    (r"\sqrt{2+\sqrt{3}}", "√(2+√(3))"),
    (r"\sqrt{(1+x)(2+x)}", "sqrt((1+x)(2+x))"),
    (r"\sqrt{x}", "√x"),
    (r"\sqrt{\pi}", "√π"),
    (r"\sqrt{32}", "√32"),
    (r"\sqrt{2}", "sqrt 2"),
    (r"\sqrt{2}", "sqrt2"),
    (r"\ln 2", "ln(2)"),
    (r"\log 2", "log(2)"),
    (r"\sin x", "sin(x)"),
    (r"\sin x", "y = sin x"),
    (r"\sin^2 x", "sin^2(x)"),
    (r"2\sin x\cos x", "2 sin x cos x"),
    (r"e^{2}", "exp(2)"),
    (r"\arctan 2", "arctan(2)"),
    ("x^4", "x⁴"),
    ("x^{12}", "x¹²"),
    ("x^{-1}", "x⁻¹"),
    ("10^6", "10⁶"),
    (r"28\text{ cm}^2", "28 cm²"),
    ("1/2", "½"),
    ("2.5", "2½"),
    (r"\frac{3}{4}", "¾"),
    (r"\frac{2}{3}", "⅔"),
]
OTHER = [
    ("2*pi", "2*ip"),
    ("2*pi", r"3\pi"),
    ("pi", "3.14"),
    (r"5\sqrt{2}", "5√3"),
    (r"5\sqrt{2}", "√52"),
    (r"\sqrt{x+1}", "√x+1"),
    (r"\sqrt{2}x", "√(2x)"),
    (r"\ln 2", "ln(3)"),
    (r"\ln 2", "2*n*l"),
    (r"\sin x", "cos(x)"),
    ("sin(x)", "nis(x)"),
    ("x^4", "x³"),
    ("x^4", "4x"),
    ("x^{12}", "x¹²³"),
    ("x^{-1}", "x¹"),
    ("1/2", "¼"),
    ("2", "½"),
    ("-1", "½½"),
    (r"\log 2", "ln(2)"),
    (r"\sqrt{2}", "√3"),
    (r"\frac{\pi}{2}", "ip/2"),
]


@pytest.mark.parametrize(("gold", "answer"), SAME)
def test_another_notation_is_the_same(gold: str, answer: str) -> None:
    assert math_equal(gold, answer)
    assert math_equal(answer, gold)


@pytest.mark.parametrize(("gold", "answer"), OTHER)
def test_another_value_is_wrong_in_any_notation(gold: str, answer: str) -> None:
    assert not math_equal(gold, answer)


@pytest.mark.parametrize(
    "text", ["9⁹⁹⁹⁹⁹⁹", "(10¹⁰)!", "2^√(10^18)", "2^sqrt(10^18)", r"2^\sqrt{10^{18}}", "√(" * 20]
)
def test_unicode_hides_no_work(text: str) -> None:
    assert not bounded(text, 2000)


@pytest.mark.parametrize(
    "text", ["5√2 + x⁴", "√(2+√(3))", "√(1", "√", r"√\boxed{2}", r"sqrt \boxed{2}", "½ sqrt(2)"]
)
def test_notation_is_stable(text: str) -> None:
    assert bare(bare(text)) == bare(text)


@pytest.mark.parametrize("piece", ["√(", "√", "sqrt", "sqrt(", "⁻", "⁹", "½", "pi", "pi ", "√( )"])
def test_notation_is_quick_on_any_text(piece: str) -> None:
    answer = (piece * 2000)[:2000]
    start = time.perf_counter()
    quick_verdict(r"5\sqrt{2}", answer)
    bounded(answer, 2000)
    assert time.perf_counter() - start < 1.0
