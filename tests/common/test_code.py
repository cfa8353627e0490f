"""Programs as answers: which block is the program, which tests a row has, which outputs are equal."""

import time

import pytest

from hora_rl.common.config.reward import Reward
from hora_rl.common.data.code import Pair, RowTests, extract_code, read_tests, same_output


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("```python\nprint(1)\n```", "print(1)"),
        ("first\n```py\n1\n```\nbetter:\n```python\n2\n```\ndone", "2"),
        ("<think>```\n1\n```</think><answer>```python\n2\n```</answer>", "2"),
        ("<think>```\n1\n```</think> none", None),
        ("<think>```\n1\n```", None),
        ("…</think>\n```\n2\n  ```", "2"),
        ("```python\nprint(1)\n", None),
        ("```python\nprint(1)\n```\n```python\ncut", "print(1)"),
        ("```print(1)```", None),
        ("```\n```", ""),
        ("s = `x` ```\n1\n```", "1"),
        ("", None),
    ],
)
def test_the_program_is_the_last_block_that_is_closed(completion: str, program: str | None) -> None:
    assert extract_code(completion) == program


@pytest.mark.parametrize("text", ["```\n", "a```\n", "```", "`", "<think>", "</think>```\n", "```\n```\n"])
def test_finding_it_takes_linear_time_on_hostile_text(text: str) -> None:
    began = time.process_time()
    extract_code(text * (400_000 // len(text)))
    assert time.process_time() - began < 2


PAIRS = RowTests(pairs=(Pair("1\n", "2\n"), Pair("", "0")))


@pytest.mark.parametrize(
    "value",
    [
        [{"input": "1\n", "output": "2\n"}, {"input": "", "output": "0"}],
        {"inputs": ["1\n", ""], "outputs": ["2\n", "0"]},
        {"stdin": ["1\n", ""], "stdout": ["2\n", "0"]},
        [{"stdin": "1\n", "stdout": "2\n"}, {"stdin": "", "stdout": "0"}],
        '{"inputs": ["1\\n", ""], "outputs": ["2\\n", "0"]}',
        ' [{"input": "1\\n", "output": "2\\n"}, {"input": "", "output": "0", "kind": "hidden"}]',
    ],
)
def test_pairs_are_read_in_every_form(value: object) -> None:
    assert read_tests(value) == PAIRS
    assert read_tests(value).runs == 2


def test_assertions_are_one_text() -> None:
    assert read_tests(["import math", "assert f(1) == 2"]).asserts == "import math\nassert f(1) == 2"
    check = "def check(candidate):\n    assert candidate(1) == 2"
    assert read_tests(check, "f") == RowTests(asserts=check, entry="f")
    assert read_tests("[check(x) for x in (1, 2)]").asserts


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "holds no tests"),
        ([], "holds no tests"),
        ("x = 1", "nothing in it can fail"),
        ("assert f(1) =", "is neither JSON nor Python"),
        ({"inputs": ["1"], "outputs": []}, "lists of equal length"),
        ({"inputs": [], "outputs": []}, "inputs is empty"),
        ({"fn_name": "f", "inputs": [[1]], "outputs": [[2]]}, "write its tests as assertions"),
        ([{"input": 1, "output": 2}], "must be texts"),
        ([{"stdin": "1"}], "is no test"),
        ([["1", "2"]], "is no test"),
    ],
)
def test_tests_that_cannot_be_used_say_why(value: object, why: str) -> None:
    with pytest.raises(ValueError, match=why) as error:
        read_tests(value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("expected", "found", "same"),
    [
        ("1 2\n3\n", "1 2 \n3\n\n", True),
        ("", "\n", True),
        ("1", "1\r\n", True),
        ("1\n2", "1 2", False),
        (" 1", "1", False),
        ("1", "1.0", False),
        ("1\n\n2", "1\n2", False),
    ],
)
def test_outputs_are_equal_but_for_white_space_at_their_ends(expected: str, found: str, same: bool) -> None:
    assert same_output(expected, found) is same


def test_it_is_the_success_where_it_has_a_weight_and_accuracy_has_none() -> None:
    assert Reward(weights={"code_tests": 1.0}).success == "code_tests"
    assert Reward(weights={"code_tests": 1.0, "a.b:c": 1.0}).success == "code_tests"
    assert Reward(weights={"code_tests": 1.0, "accuracy": 1.0}).success == "accuracy"
    assert Reward(weights={"format": 1.0}, success="code_tests").names == ("format", "code_tests")
