"""`cases.jsonl` by gold answer: answers that equal it (`same`), do not (`other`), or are left `open` by text,
and the `fault` of a gold answer that cannot be judged. Those about `text` are decided without mathematics.
Those about `lenient` are completions, some of SmolLM2-135M-Instruct cut after eight tokens."""

import json
import time
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hora_rl.actors.verifier.answers import ANSWERS
from hora_rl.actors.verifier.equality import bare, bounded, equal, expressions, gold_fault

CASES = [json.loads(line) for line in Path(__file__).with_name("cases.jsonl").read_text("utf-8").splitlines()]
VERDICTS = {"same": True, "other": False, "open": None}
PAIRS = [
    (case["about"], case["gold"], answer, verdict)
    for case in CASES
    for side, verdict in VERDICTS.items()
    for answer in case.get(side, ())
]
CLASSES = {
    "repeating", "complex", "logarithm", "powers of ten", "angles", "percentages", "options", "counted",
    "typeface", "currency", "counters",
}  # fmt: skip
"""Ways in which models write, each with at least twelve pairs that are equal and twelve that are not."""
HOSTILE = r"""1 h |1 | |\,|\text{ cm}|\text{|a(|=|x=|\boxed{|1,000|1{,}000|{|~|**|<b>|\begin{aligned}|\\
12,34,|]0;|1'000|\frac{\text{|\mathbf{|\text{1}|{\bf |\color{red}|\large|x^\mathbf{|\phantom{|क|ি|个|م|元 
m/|...|^2|√(|√|sqrt|sqrt(|⁻|⁹|½|pi|pi |√( )""".replace("\n", "|").split("|")
PIECES = [*"0123456789 xyei=+-^_{}()[],.;<>|!$", r"\text{", " hours ", "million", r"\frac", r"\left(", r"\in"]
PIECES += [r"\,", r"\le", r"\mathbf{", r"\text{", r"{\bf ", r"\color{red}", "个", "元", "₹", "４", "1e-05"]
HUGE = ["9⁹⁹⁹⁹⁹⁹", "(10¹⁰)!", "2^√(10^18)", "2^sqrt(10^18)", r"2^\sqrt{10^{18}}", "√(" * 20]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=25)


@pytest.mark.parametrize(("about", "gold", "answer", "verdict"), PAIRS)
def test_an_answer_is_judged_as_the_table_says(
    about: str, gold: str, answer: str, verdict: bool | None
) -> None:
    if about == "text":
        assert equal(gold, answer) is verdict
        return
    if about == "lenient":
        answer = ANSWERS["lenient"](answer) or ""
    assert equal(gold, answer, maths=True) is verdict
    if about in CLASSES | {"lenient"} and verdict:
        assert bounded(answer, 2000)
        assert gold_fault(gold) is None
    if about in ("notation", "typeface") and verdict:
        assert equal(answer, gold, maths=True)
    if about == "words" and not verdict and not any(c == "-" or c.isdigit() for c in gold):
        assert equal(gold, answer) is False, "plain words need no mathematics"
        assert gold_fault(gold) is None


@pytest.mark.parametrize(
    "case", [case for case in CASES if case["about"] == "gold"], ids=lambda c: c["gold"][:40]
)
def test_a_gold_answer_that_cannot_be_judged_is_refused_with_the_remedy(case: dict[str, str | None]) -> None:
    fault = gold_fault(case["gold"] or "")
    assert fault == case["fault"] or (case["fault"] and case["fault"] in (fault or ""))


def test_each_class_has_twelve_cases_and_its_near_misses() -> None:
    counts = Counter((about, verdict) for about, _, _, verdict in PAIRS)
    assert min(counts[name, verdict] for name in CLASSES for verdict in (True, False)) >= 12


def test_bad_syntax_is_no_expression_and_short_memory_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    assert expressions.parse(r"\frac{1}{") is None
    monkeypatch.setattr(expressions, "latex2sympy", Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        expressions.parse("1")


@given(st.integers(-(10**30), 10**30), st.integers(-(10**30), 10**30))
def test_two_integers_are_equal_exactly_when_their_values_are(gold: int, answer: int) -> None:
    assert equal(str(gold), f"{answer:,}.00") is (gold == answer)


@given(st.text(alphabet=r"$\{}()[]boxed. 12,-+√sqrt⁴½", max_size=60))
def test_taking_an_answer_out_of_its_wrapping_ends_and_is_stable(text: str) -> None:
    assert bare(bare(text)) == bare(text)


@given(TEXTS, TEXTS)
def test_every_pair_of_texts_has_a_verdict_and_equal_texts_are_equal(gold: list, answer: list) -> None:
    assert equal("".join(gold), "".join(answer)) in (True, False, None)
    assert equal("".join(gold), "".join(gold)) is True


@pytest.mark.parametrize("text", HUGE)
def test_unicode_hides_no_work(text: str) -> None:
    assert not bounded(text, 2000)


@pytest.mark.parametrize("piece", HOSTILE)
def test_what_text_decides_is_quick_on_any_text(piece: str) -> None:
    answer = (piece * 2000)[:2000]
    start = time.process_time()
    for text in (answer, "1 " + answer, answer + "1", answer + "x"):
        equal(r"2\text{ hours }30\text{ minutes}", text)
        bounded(text, 2010)
    assert time.process_time() - start < 2.0
