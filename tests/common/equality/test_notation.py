"""Unicode mathematics and plain names cost what their LaTeX does."""

from __future__ import annotations

import time

import pytest

from hora_rl.common.equality import bare, bounded, quick_verdict


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
