"""Where the answer of a completion is, and whether it has the form that was asked for."""

import time

import pytest

from hora_rl.common.answers import (
    ANSWERS,
    format_reward,
    load_extract,
    prefill,
    user_answer,
)

WELL_FORMED = [
    "<think>a</think><answer>b</answer>",
    "<think>a\n\nb</think>\n \t<answer>1\n2</answer>",
    "<think></think><answer></answer>",
    "<think>1 < 2 > 0</think><answer>x</answer>",
    " \n<think>a</think><answer>b</answer>\n",
]
MALFORMED = [
    "",
    "<answer>b</answer>",
    "<think>a</think>so<answer>b</answer>",
    "<think>a</think><answer>b</answer>.",
    "<think>a</think><answer>b</answer><answer>c</answer>",
    "<think>a<think>b</think><answer>c</answer>",
    "<answer>b</answer><think>a</think>",
    "<think>a<answer>b</think></answer>",
]


@pytest.mark.parametrize(
    ("completion", "mode", "reward"),
    [
        *((completion, "tags", 1.0) for completion in WELL_FORMED),
        *((completion, "tags", 0.0) for completion in MALFORMED),
        (r"<think>a</think> so \boxed{1}", "boxed", 1.0),
        (r" so \boxed{1} ", "boxed", 1.0),
        (r"<think>a \boxed{1}</think> so", "boxed", 0.0),
        (r"<think>a <think> b</think> \boxed{1}", "boxed", 0.0),
        (r"hm <think>a</think> \boxed{1}", "boxed", 0.0),
        (r"a</think> \boxed{1}", "boxed", 0.0),
        ("<think>a</think> 1", "final", 1.0),
        ("<think>a</think>", "final", 0.0),
        ("<think>a</think>", "my.module:answer", 1.0),
        ("<think>a", "my.module:answer", 0.0),
    ],
)
def test_the_format_is_a_whole_thought_and_the_answer_of_its_mode(
    completion: str, mode: str, reward: float
) -> None:
    assert format_reward(completion, mode) == reward


TAGS = [
    ("<think>a</think><answer> 7 \n</answer>", "7"),
    ("<answer>7", None),
    ("</answer>7<answer>", None),
    ("<answer>  </answer>", None),
    ("<answer>1</answer> no, <answer>2</answer>", "2"),
]
BOXED = [
    (r"so \boxed{5}", "5"),
    (r"\boxed{4}, no: $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
    (r"\boxed{7} and \boxed{8", "7"),
    (r"\boxed{(0, 1\}}", r"(0, 1\}"),
    (r"\boxed{a \\ b}", r"a \\ b"),
    (r"\fbox{3} \boxed {4}", "4"),
    (r"} } \boxed{6}", "6"),
    (r"\boxed{}", None),
    (r"<think>\boxed{1}</think> \boxed{2}", "2"),
    (r"<think>\boxed{1}", None),
    (r"<think>\boxed{1}</think> nothing", None),
]
FINAL = [
    ("We add.\nThe answer is 12", "12"),
    ("The answer is 11. No.\n**Final Answer:** 12\nThat is all.", "12"),
    ("It follows that\n\n  42 \n\n", "42"),
    ("The answer is:\n$7$", "$7$"),
    ("The answer is **72**.", "72"),
    ("**The answer is 72**.", "72"),
    ("It is\n__72__.", "72"),
    ("Answer:\n$$\n72\n$$", "$$ 72 $$"),
    ("The answer is \\[\n72\n\\].", r"\[ 72 \]"),
    ("\\[\n1\n\\]\nso\n\\[\nx =\n72\n\\]\n", r"\[ x = 72 \]"),
    ("72\n\\]", r"\]"),
    ("So\n## **72**", "72"),
    ("### Answer: 72", "72"),
    ("So\n#5", "#5"),
    ("<think>the answer is 3</think>\n4", "4"),
    ("<think>the answer is 3", None),
    ("", None),
]
AUTO = [
    (r"\boxed{1} <answer>2</answer> the answer is 3", "2"),
    (r"\boxed{1} the answer is 3", "1"),
    ("the answer is 3", "3"),
]


@pytest.mark.parametrize(
    ("mode", "completion", "answer"),
    [
        (mode, *case)
        for mode, cases in (("tags", TAGS), ("boxed", BOXED), ("final", FINAL), ("auto", AUTO))
        for case in cases
    ],
)
def test_each_mode_finds_the_last_answer_of_its_kind(mode: str, completion: str, answer: str | None) -> None:
    assert ANSWERS[mode](completion) == answer


@pytest.mark.parametrize(
    "answer", [r"\frac{1}{2}", r"x^2 + 2x", "(3, 4)", r"\text{Evelyn}", r"5\text{ red apples}"]
)
@pytest.mark.parametrize("form", ["<answer>{}</answer>", "\\boxed{{{}}}", "The answer is {}", "{}"])
def test_lenient_leaves_an_answer_without_words_around_it_as_it_is(form: str, answer: str) -> None:
    assert ANSWERS["lenient"](form.format(answer)) == answer


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ("<|im_start|>assistant\n<think>\n", "<think>\n"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "<think>\n\n</think>\n\n"),
        ("<|im_start|>assistant\n", ""),
        ("What does <think> mean?", ""),
    ],
)
def test_a_thought_that_the_template_opens_belongs_to_the_completion(prompt: str, found: str) -> None:
    assert prefill(prompt) == found
    told = r"I add.</think> \boxed{3}" if found == "<think>\n" else r"\boxed{3}"
    assert format_reward(found + told, "boxed") == 1.0
    assert ANSWERS["boxed"](found + told) == "3"


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
    start = time.perf_counter()
    format_reward(hostile, mode)
    ANSWERS[mode](hostile)
    assert time.perf_counter() - start < 2.0


def last_word(completion: str) -> str | None:
    return completion.split()[-1] if completion.split() else None


def broken(completion: str) -> object:
    return len(completion)


def test_an_answer_found_by_a_users_function_is_checked() -> None:
    assert user_answer(f"{__name__}:last_word", "it is 5") == "5"
    assert user_answer(f"{__name__}:last_word", "") is None
    with pytest.raises(ValueError, match="must return text, or None for no answer"):
        user_answer(f"{__name__}:broken", "x")
    with pytest.raises(ValueError, match=r"cannot load 'no\.such:fn'"):
        load_extract("no.such:fn")
