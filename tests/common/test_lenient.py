"""`reward.answer: lenient` takes the last number or expression of natural text, and equality judges it."""

from __future__ import annotations

import pytest

from hora_rl.common.answers import ANSWERS, instructions
from hora_rl.common.equality import bounded, math_equal

lenient = ANSWERS["lenient"]

TAKEN = [
    ("7 + 5 = 12.", "12"),
    (" 12\n", "12"),
    ("12", "12"),
    ("12.", "12"),
    ("**12**", "12"),
    ("The sum of 12 and 19 is 31.", "31"),
    ("Therefore, 33", "33"),
    ("5 apples", "5"),
    ("There are 5 apples left.", "5"),
    ("So Tom has **7 apples** in total.", "7"),
    ("15% of 200 = 0.15 * 200 = 30", "30"),
    ("She pays $15 and then $30.", "30"),
    ("She pays $15 and then $30.", r"\$30"),
    ("It is 1,234 people.", "1234"),
    ("The train travels 180 miles.", "180"),
    ("It takes 2 hours and 30 minutes.", r"150\text{ minutes}"),
    ("The speed is 60 miles per hour.", r"60\text{ mph}"),
    ("It is 50%.", r"\frac{1}{2}"),
    ("It is 10km away.", r"10\text{ km}"),
    ("There are 24 hours in a day.", "24"),
    ("The temperature is -4 degrees.", "-4"),
    ("It costs 3.50.", "3.5"),
    (r"The value is $\frac{1}{2}$.", r"\frac{1}{2}"),
    (r"So \(x = 4\).", "4"),
    ("Solving it, we get:\n\\[\nx = 4\n\\]", "4"),
    (r"That is 3\frac{1}{2} cups of flour.", r"\frac{7}{2}"),
    ("The solution is x = 3/4.", r"\frac{3}{4}"),
    ("The point is (3, 4).", "(3,4)"),
    (r"The set is \{1, 2\}.", r"\{2,1\}"),
    ("The result is x^2 + 1.", "1+x^2"),
    (r"The result is \boxed{7 apples}.", "7"),
    ("<answer>The total is 5.</answer>", "5"),
    ("<think>1 + 1</think>So it is 2.", "2"),
    ("The answer is 12. This is because we add 7 and 5.", "12"),
    ("The answer is the sum of 7 and 5, which is 12.", "12"),
    ("The answer is 5.\n\nLet me know if I can help with 3 more.", "5"),
    ("He has 12 apples.\n\nI hope this helps!", "12"),
    ("Step 1: add.\nStep 2: 3 apples + 4 apples = 7 apples.", "7"),
    ("The answer is (B).", "B"),
    ("The final answer is Paris.", r"\text{Paris}"),
    ("12 (twelve)", "12"),
    ("#### 72", "72"),
]
OTHERS = [
    ("7 + 5 = 12.", "7"),
    ("7 + 5 = 13.", "12"),
    ("7 + 5 =", "7"),
    ("It is 1,234 people.", "234"),
    ("There are 5 apples and 3 pears.", "5"),
    ("It takes 2 hours and 30 minutes.", "30"),
    ("He takes 5 halves.", "5"),
    ("That is 5 squared.", "5"),
    ("That is 5 dozen.", "5"),
    ("The temperature is -4 degrees.", "4"),
    (r"The value is $\frac{1}{2}$.", "2"),
    ("The answer is 12. This is because we add 7 and 5.", "5"),
    ("The point is (3, 4).", "4"),
    ("I cannot say.", "12"),
    ("The final answer is Paris.", r"\text{London}"),
    ("<think>It is 5.", "5"),
    ("The train leaves at 12:30.", "30"),
]
SMOLLM2 = [
    (" 105\n                      ", "105"),
    (" 1,387 ", "1387"),
    (" 104 ", "104"),
    (" 106 (last solution)", "106"),
    (" 110 Choose: F", "110"),
    (" 111 But if we just", "111"),
    (" 111, every bit S", "111"),
    (" 120, a rational number", "120"),
    (" 121 (seven levels)", "121"),
    (" 121The answer is ", "121"),
    (" 122 Using still complex logic", "122"),
    (" 128  #  The", "128"),
    (" 128 The answer is ", "128"),
    (" 128.815", "128.815"),
    (" 131 still there. Don", "131"),
    (" 152, and ", "152"),
    (" 156.", "156"),
    (" 158 units", "158"),
    (" 162 In this led to", "162"),
    (" 118 Total", "118"),
]
"""Completions of SmolLM2-135M-Instruct for few-shot sums, cut after eight tokens."""


@pytest.mark.parametrize(("completion", "gold"), [*TAKEN, *SMOLLM2])
def test_the_last_number_or_expression_of_natural_text_is_the_answer(completion: str, gold: str) -> None:
    answer = lenient(completion)
    assert answer is not None
    assert bounded(answer, 2000)
    assert math_equal(gold, answer)


@pytest.mark.parametrize(("completion", "gold"), OTHERS)
def test_part_of_it_or_another_number_is_not(completion: str, gold: str) -> None:
    answer = lenient(completion)
    assert answer is None or not math_equal(gold, answer)


@pytest.mark.parametrize(
    "answer", [r"\frac{1}{2}", r"x^2 + 2x", "(3, 4)", r"\text{Evelyn}", r"5\text{ red apples}"]
)
@pytest.mark.parametrize("form", ["<answer>{}</answer>", "\\boxed{{{}}}", "The answer is {}", "{}"])
def test_an_answer_without_words_around_it_is_left_as_it_is(form: str, answer: str) -> None:
    assert lenient(form.format(answer)) == answer


def test_lenient_asks_for_a_sentence_and_text_without_a_thought_has_its_form() -> None:
    assert "The answer is" in (instructions("lenient", ("accuracy",)) or "")
