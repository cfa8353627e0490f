"""A gold answer that is a solution is refused, with the reason."""

from __future__ import annotations

import pytest

from hora_rl.common.equality import gold_fault


@pytest.mark.parametrize(
    "gold",
    [
        r"We know that $x = \boxed{12}$",
        r"$6=\boxed{6}$",
        r"x = \boxed{5}",
        r"Thus \boxed{\frac{1}{2}}.",
        "We know that $x = 12$",
        r"We know that \(x = 12\).",
        r"\boxed{12} is it",
        r"so \boxed{12",
    ],
)
def test_a_solution_is_no_gold_answer(gold: str) -> None:
    assert gold_fault(gold) is not None
    assert "the answer alone, not the solution" in (gold_fault(gold) or "")


@pytest.mark.parametrize("gold", ["She sold 48/2 = <<48/2=24>>24.\n#### 72", "#### 72"])
def test_a_gsm8k_solution_names_the_remedy(gold: str) -> None:
    assert "a column with what follows '####' alone" in (gold_fault(gold) or "")


@pytest.mark.parametrize(
    "gold",
    [
        r"\boxed{12}",
        r"$\boxed{12}$.",
        r"\boxed{(1,2)} and \boxed{(3,4)}",
        r"\boxed{1}, \boxed{2}",
        r"\boxed{1}\text{ and }\boxed{2}",
        r"$2$ hours and $30$ minutes",
        r"$1$, $2$ and $3$",
        r"\$5",
        "the cat sat",
    ],
)
def test_an_answer_in_its_wrapping_is_one(gold: str) -> None:
    assert gold_fault(gold) is None


def test_any_other_fault_is_told_in_general() -> None:
    assert gold_fault("9^{9^{9^9}}") == "cannot be verified"
