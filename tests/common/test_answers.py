"""Where the answer of a completion is, and whether it has the form asked for; programs as answers."""

import time
from pathlib import Path

import pytest
import yaml

from hora_rl.actors.verifier.answers import ANSWERS, format_reward, load_extract, user_answer
from hora_rl.common.answer_format import prefill
from hora_rl.common.config.reward import RewardConfig
from hora_rl.common.data.code import Call, Pair, RowTests, code_blocks, continuation, read_tests, same_output

PAIRS = RowTests(pairs=(Pair("1\n", "2\n"), Pair("", "0")))
CASES, PROGRAMS = (
    yaml.safe_load(Path(__file__).with_name(f"{name}.yaml").read_text("utf-8"))
    for name in ("answers", "programs")
)
CASES["final"] += [(sentence, "42") for sentence in CASES.pop("in_languages")]


@pytest.mark.parametrize(("completion", "mode", "reward"), PROGRAMS["format"])
def test_the_format_is_a_thought_and_its_modes_answer(completion: str, mode: str, reward: float) -> None:
    assert format_reward(completion, mode) == reward


ALONE = [r"\frac{1}{2}", r"x^2 + 2x", "(3, 4)", r"\text{Evelyn}", r"5\text{ red apples}"]


@pytest.mark.parametrize(
    ("mode", "completion", "answer"), [(mode, *case) for mode, cases in CASES.items() for case in cases]
)
def test_each_mode_finds_the_last_answer_of_its_kind(mode: str, completion: str, answer: str | None) -> None:
    assert ANSWERS[mode](completion) == answer


@pytest.mark.parametrize("answer", ALONE)
@pytest.mark.parametrize("form", ["<answer>{}</answer>", "\\boxed{{{}}}", "The answer is {}", "{}"])
def test_lenient_leaves_an_answer_without_words_around_it_as_it_is(form: str, answer: str) -> None:
    assert ANSWERS["lenient"](form.format(answer)) == answer


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ("<|im_start|>assistant\n<think>\n", "<think>\n"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "<think>\n\n</think>\n\n"),
        ("<|im_start|>assistant\n", ""),
        ("What does <think> mean?", ""),
    ],
)
def test_a_thought_that_the_template_opens_belongs_to_the_completion(prompt: str, opened: str) -> None:
    assert prefill(prompt) == opened
    answer = r"I add.</think> \boxed{3}" if opened == "<think>\n" else r"\boxed{3}"
    assert format_reward(opened + answer, "boxed") == 1.0
    assert ANSWERS["boxed"](opened + answer) == "3"


@pytest.mark.parametrize("mode", ANSWERS)
@pytest.mark.parametrize(
    "hostile",
    [
        r"\boxed{" * 50_000,
        r"\boxed{" * 50_000 + "}" * 50_000,
        "answer" + " " * 300_000,
        "<think>" + "</think>" * 200_000 + "</answer>",
        "<think></think>" + " " * 300_000 + "<answer></answer>x",
        "<think></think>" + "<answer>" * 200_000 + "</answer>",
        "$$\n" * 100_000,
        "#" * 300_000,
        "*." * 100_000,
        "\\" * 300_001,
        "</think><think>" * 100_000,
        "1" + " " * 300_000 + "1",
        "1 and " * 50_000,
        r"\( 1 " * 60_000,
        "word " + "(1 = " * 60_000,
    ],
)
def test_every_mode_takes_linear_time(mode: str, hostile: str) -> None:
    start = time.process_time()
    format_reward(hostile, mode)
    ANSWERS[mode](hostile)
    assert time.process_time() - start < 2.0


def last_word(completion: str) -> str | None:
    return completion.split()[-1] if completion.split() else None


def broken(completion: str) -> object:
    return len(completion)


def test_an_answer_found_by_a_users_function_is_checked() -> None:
    assert user_answer(f"{__name__}:last_word", "it is 5") == "5"
    assert user_answer(f"{__name__}:last_word", "") is None
    with pytest.raises(ValueError, match="broken"):
        user_answer(f"{__name__}:broken", "x")
    with pytest.raises(ValueError, match=r"no\.such:fn"):
        load_extract("no.such:fn")


@pytest.mark.parametrize(("completion", "blocks"), PROGRAMS["blocks"])
def test_code_blocks_are_closed_dedented_and_no_text_or_shell(completion: str, blocks: list[str]) -> None:
    assert code_blocks(completion) == blocks


@pytest.mark.parametrize(("completion", "program"), PROGRAMS["continued"])
def test_a_completion_without_blocks_continues_the_text_before_it(completion: str, program: str) -> None:
    assert continuation(completion) == program


@pytest.mark.parametrize(
    "text", ["```\n", "a```\n", "```", "`", "~", "``` a", " ", "<think>", "</think>```\n", "```\n```\n"]
)
def test_finding_it_takes_linear_time_on_hostile_text(text: str) -> None:
    began = time.process_time()
    code_blocks(text * (400_000 // len(text)))
    continuation(text * (400_000 // len(text)))
    assert time.process_time() - began < 2


@pytest.mark.parametrize("value", PROGRAMS["pairs"])
def test_pairs_are_read_in_every_form(value: object) -> None:
    assert read_tests(value) == PAIRS
    assert read_tests(value).runs == 2


CALLS = (Call("[[1, 2], 3]", ("[4]",)),)


@pytest.mark.parametrize(("value", "entry"), PROGRAMS["calls"])
def test_calls_are_read_in_every_form(value: object, entry: str) -> None:
    given = entry if entry.startswith("Solution") else None
    assert read_tests(value, given) == RowTests(calls=CALLS, entry=entry)
    listed = read_tests({"fn_name": "f", "inputs": [[[1, 2], 3]], "outputs": [[4]]})
    assert listed == RowTests(calls=(Call("[[1, 2], 3]", ("[4]", "4")),), entry="f"), "APPS lists a result"
    one = {"input": [[1, 2], 3], "output": [4], "type": "function_call", "fn_name": "f"}
    assert read_tests([one]) == listed, "and so does PrimeIntellect"
    both = {"fn_name": "f", "inputs": [[1], [2]], "outputs": [[4], 5]}
    assert [call.results for call in read_tests(both).calls] == [("[4]",), ("5",)]


def test_assertions_are_one_text() -> None:
    assert read_tests(["import math", "assert f(1) == 2"]).asserts == "import math\nassert f(1) == 2"
    check = "def check(candidate):\n    assert candidate(1) == 2"
    assert read_tests(check, "f") == RowTests(asserts=check, entry="f")
    assert read_tests("[check(x) for x in (1, 2)]").asserts


@pytest.mark.parametrize("value", PROGRAMS["no_tests"])
def test_tests_that_cannot_be_used_are_refused_in_one_line(value: object) -> None:
    with pytest.raises(ValueError, match=r"\A[^\n]*\Z"):
        read_tests(value)


@pytest.mark.parametrize(("expected", "output", "same"), PROGRAMS["outputs"])
def test_outputs_are_equal_but_for_white_space_at_their_ends(expected: str, output: str, same: bool) -> None:
    assert same_output(expected, output) is same


def test_it_is_the_success_where_it_has_a_weight_and_accuracy_has_none() -> None:
    assert RewardConfig(weights={"code_tests": 1.0}).success == "code_tests"
    assert RewardConfig(weights={"code_tests": 1.0, "a.b:c": 1.0}).success == "code_tests"
    assert RewardConfig(weights={"code_tests": 1.0, "accuracy": 1.0}).success == "accuracy"
    assert RewardConfig(weights={"format": 1.0}, success="code_tests").names == ("format", "code_tests")
