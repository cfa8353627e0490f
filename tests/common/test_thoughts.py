"""The thought is the family's own: what stands in an unfinished one is no answer and has no format."""

import pytest

from hora_rl.actors.verifier.answers import ANSWERS, example, example_program, format_reward
from hora_rl.common.answer_format import MARKS, after_thought, prefill
from hora_rl.common.data.code import code_block, code_blocks
from hora_rl.common.data.special_tokens import completed, silent_tokens
from tests.support.chat_model import TURN_END, chat_tokenizer

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
