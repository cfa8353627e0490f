"""Where the answer of a completion is, and whether it has the form asked for; programs as answers. The
thought is the family's own: what stands in an unfinished one is no answer and has no format."""

import time
from pathlib import Path

import pytest
import yaml

from hora_rl.actors.verifier.answers import (
    ANSWERS,
    example,
    example_program,
    format_reward,
    load_extract,
    user_answer,
)
from hora_rl.common.answer_format import MARKS, after_thought, prefill
from hora_rl.common.config.reward import RewardConfig
from hora_rl.common.data.code import (
    Call,
    Pair,
    RowTests,
    code_block,
    code_blocks,
    continuation,
    read_tests,
    same_output,
)
from hora_rl.common.data.special_tokens import completed, silent_tokens
from tests.support.chat_model import TURN_END, chat_tokenizer

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


SAID = {
    "tags": "<answer>{}</answer>",
    "boxed": r"So \boxed{{{}}}",
    "final": "The answer is {}",
    "lenient": "so it is {}.",
}
GPT_OSS = MARKS[5]


@pytest.mark.parametrize(("opening", "closing"), MARKS)
@pytest.mark.parametrize("mode", SAID)
def test_only_what_follows_a_finished_thought_is_an_answer(opening: str, closing: str, mode: str) -> None:
    draft, said = SAID[mode].format(1), SAID[mode].format(2)
    whole = f"{opening}\nmaybe {draft}{closing}\n\n{said}"
    assert ANSWERS[mode](whole) == "2"
    assert format_reward(whole, mode) == (0.0 if mode == "tags" else 1.0), "tags: one answer alone"
    assert format_reward(f"{opening} a {closing}\n{said}", mode) == 1.0
    for unfinished in (f"{opening}\nmaybe {draft}", f"{opening} a {closing} {said} {opening} {draft}"):
        assert ANSWERS[mode](unfinished) is None
        assert format_reward(unfinished, mode) == 0.0
    assert after_thought(f"a {closing} {said}") == f" {said}", "the prompt may have opened it"
    program = f"{opening}{code_block('1')}"
    assert code_blocks(program) == []
    assert code_blocks(f"{program}{closing}\n{code_block('2')}") == ["2"]


@pytest.mark.parametrize(("opening", "closing"), MARKS)
@pytest.mark.parametrize("mode", ["tags", "boxed", "final", "auto", "lenient"])
def test_a_thought_that_the_template_opens_is_closed_by_the_same_family(
    opening: str, closing: str, mode: str
) -> None:
    opened = prefill(f"<|user|>What is {opening}?<|assistant|>{opening}\n")
    assert opened == f"{opening}\n"
    answered = opened + example(mode, "7", opened)
    assert (ANSWERS[mode](answered), format_reward(answered, mode)) == ("7", 1.0)
    assert code_blocks(opened + example_program(mode, code_block("7"), opened)) == ["7"]
    empty = f"{opening}\n\n{closing}\n\n"
    assert prefill(f"assistant\n{empty}") == empty
    assert format_reward(empty + example(mode, "7", empty), mode) == 1.0
    assert not prefill(f"What does {opening} mean?")
    assert not prefill("<|im_start|>assistant\n")


def test_gpt_oss_names_the_channel_of_its_answer_also_without_a_thought() -> None:
    assert format_reward(rf"{GPT_OSS[1]}\boxed{{3}}", "boxed") == 1.0
    assert ANSWERS["boxed"](rf"{GPT_OSS[1]}\boxed{{3}}") == "3"
    assert ANSWERS["final"](f"{GPT_OSS[0]}It is 3.assistant<|channel|>fin") is None


@pytest.mark.parametrize(
    ("tokens", "said", "read"),
    [
        (("[THINK]", "[/THINK]", "</s>"), "[THINK]so[/THINK]7</s>", "[THINK]so[/THINK]7"),
        (("<|channel>", "<channel|>", "<turn|>"), "<|channel>thought\nso<channel|>7<turn|>", None),
        (
            ("<|channel|>", "<|message|>", "<|start|>", "<|end|>"),
            "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>7",
            "<|channel|>analysis<|message|>soassistant<|channel|>final<|message|>7",
        ),
    ],
)
def test_marks_that_are_special_tokens_are_in_the_completions_text(
    tokens: tuple[str, ...], said: str, read: str | None
) -> None:
    tokenizer = chat_tokenizer(tags=tokens)
    ids = tokenizer.encode(said + TURN_END)
    text = completed(tokenizer, silent_tokens(tokenizer), ids, "stop")
    assert text == (read or said.removesuffix(tokens[-1]))
    assert ANSWERS["final"](text) == "7"
