"""Answers that are right and answers that are wrong, gold answer by gold answer, in `cases.jsonl`.

Those about `lenient` are completions, some of SmolLM2-135M-Instruct cut after eight tokens: the mode takes
the last number or expression of natural text."""

import json
from collections import Counter
from pathlib import Path

import pytest

from hora_rl.common.answers import ANSWERS
from hora_rl.common.equality import bounded, gold_fault, math_equal, quick_verdict

CASES = [json.loads(line) for line in Path(__file__).with_name("cases.jsonl").read_text("utf-8").splitlines()]
PAIRS = [
    (c["about"], c["gold"], answer, right == "same")
    for c in CASES
    for right in ("same", "other")
    for answer in c[right]
]
CLASSES = {
    "repeating", "complex", "logarithm", "powers of ten", "angles", "percentages", "options", "counted",
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
    if about == "notation" and right:
        assert math_equal(answer, gold)
    if about == "words" and not right and not any(c == "-" or c.isdigit() for c in gold):
        assert quick_verdict(gold, answer) is False, "plain words need no mathematics"
        assert gold_fault(gold) is None


def test_each_class_has_twelve_cases_and_its_near_misses() -> None:
    found = Counter((about, right) for about, _, _, right in PAIRS)
    assert min(found[name, right] for name in CLASSES for right in (True, False)) >= 12
