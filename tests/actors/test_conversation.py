"""What the policy sampled is what the learner trains on: real chat templates, random tokens, none changed."""

from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from hora_rl.actors.environment.conversation import Conversation, History, Template
from hora_rl.common.config import DataConfig
from hora_rl.common.data.special_tokens import completed, silent_tokens
from hora_rl.common.errors import EnvironmentFault
from hora_rl.common.types import Completion
from hora_rl.learner.rows.packing import sequences
from tests.support.groups import completion as answer
from tests.support.groups import rollout
from tools.demo_models import make_tokenizer

DEEPSEEK = "<｜begin▁of▁sentence｜>"
# Control tokens of each family, its end of a turn first.
FAMILIES = {
    "qwen2_5": ("<|im_end|>", "<|im_start|>", "<|endoftext|>"),
    "qwen3": ("<|im_end|>", "<|im_start|>", "<|endoftext|>", "<think>", "</think>"),
    "llama3": ("<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
    "phi3": ("<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|endoftext|>"),
    "gemma3": ("<end_of_turn>", "<start_of_turn>", "<bos>"),
    "deepseek_r1_distill": ("<｜end▁of▁sentence｜>", DEEPSEEK, "<｜User｜>", "<｜Assistant｜>"),
    "glm4moe": ("<|user|>", "<|assistant|>", "<|system|>", "<|observation|>", "[gMASK]", "<sop>"),
    "gptoss": ("<|return|>", "<|end|>", "<|start|>", "<|channel|>", "<|message|>"),
    "gemma4_v5": ("<turn|>", "<|turn>", "<|channel>", "<channel|>", "<bos>"),
    "demo": ("<eos>",),
}
BEGINS = {"llama3": "<|begin_of_text|>", "gemma3": "<bos>", "deepseek_r1_distill": DEEPSEEK}
CHAT = DataConfig(path="x")
OPENING = [{"role": "user", "content": "What is 3 + 4?"}]


@cache
def tokenizer_of(family: str) -> PreTrainedTokenizerBase:
    """Single bytes and the family's control tokens, under its chat template."""
    tokenizer = make_tokenizer(4096)
    if family != "demo":
        tokenizer.add_tokens([AddedToken(t, normalized=False, special=True) for t in FAMILIES[family]])
        tokenizer.chat_template = files("trl").joinpath(f"chat_templates/{family}.jinja").read_text()
        if family in BEGINS:
            tokenizer.bos_token = BEGINS[family]
    return tokenizer


def ids(family: str, text: str) -> np.ndarray:
    return np.asarray(tokenizer_of(family).encode(text, add_special_tokens=False), np.int32)


def whole(family: str, messages: list[dict[str, str]]) -> np.ndarray:
    return Template(tokenizer_of(family), CHAT).whole(messages)


def begun(family: str, history: History = "append") -> Conversation:
    return Conversation(Template(tokenizer_of(family), CHAT), OPENING, whole(family, OPENING), history)


def say(conversation: Conversation, made: Completion, *new: dict[str, str]) -> np.ndarray:
    context = conversation.context(new)
    conversation.append(new, context, made)
    return context


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("history", ["append", "render"])
@pytest.mark.parametrize("family", FAMILIES)
def test_of_a_million_sampled_tokens_none_is_changed(family: str, history: History) -> None:
    rng = np.random.default_rng(0)
    vocabulary, end = len(tokenizer_of(family)), int(ids(family, FAMILIES[family][0])[0])
    for episode in range(16):  # 16 x 4 x 1,000 tokens of 8 families and 2 histories
        conversation, seen = begun(family, history), []
        for turn in range(4):
            tokens, stopped = rng.integers(0, vocabulary, 1000), (episode + turn) % 2 == 0
            tokens[-1] = end if stopped else tokens[-1]
            made = answer(tokens, f" said {turn} ", "stop" if stopped else "length")
            new = [user(f" observation {turn}\n")] if turn else []
            seen.append((say(conversation, made, *new), tokens))
        whole_episode = conversation.completion({}, cut=False)
        assert (whole_episode.tokens == np.concatenate([tokens for _, tokens in seen])).all()
        again = rollout(whole_episode.tokens, turns=whole_episode.turns)
        trained = [
            (np.concatenate([s.prompt, s.tokens[:place]]), s.tokens[place])
            for s in sequences(whole(family, OPENING), again)
            for place in s.places[::1000]
        ]
        for (context, tokens), (before, first) in zip(seen, trained, strict=True):
            assert (before == context).all(), "trained in the context it was sampled in"
            assert first == tokens[0]


# Families whose template shows what was said before as it was said.
@pytest.mark.parametrize("family", ["qwen2_5", "qwen3", "llama3", "phi3", "gemma3", "demo"])
def test_appended_pieces_are_what_the_template_writes(family: str) -> None:
    conversation, end = begun(family), FAMILIES[family][0]
    say(conversation, answer(ids(family, f"It is 7.{end}"), "It is 7."))
    second = say(conversation, answer(ids(family, f"No, 8.{end}"), "No, 8."), user("Sure?"))
    third = say(conversation, answer(ids(family, "8")), user("Really?"))
    said = [*OPENING, {"role": "assistant", "content": "It is 7."}, user("Sure?")]
    assert (second == whole(family, said)).all()
    said += [{"role": "assistant", "content": "No, 8."}, user("Really?")]
    assert (third == whole(family, said)).all()


LLAMA_2 = (  # white space before the end of a turn
    "{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] | trim }} [/INST]"
    "{% else %}{{ ' ' + m['content'] | trim + ' ' + eos_token }}{% endif %}{% endfor %}"
)


def sentencepiece() -> PreTrainedTokenizerBase:
    """Characters, with `▁` for a space, which decodes to nothing at the start of a text."""
    vocabulary = {letter: i for i, letter in enumerate(["▁", "?", *map(chr, range(65, 123)), "7", "8", "/"])}
    words = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    words.pre_tokenizer, words.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    words.add_special_tokens(["<eos>"])
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>")


@pytest.mark.parametrize("make", [lambda: make_tokenizer(4096), sentencepiece])
def test_white_space_before_the_end_of_a_turn_goes_with_an_end_that_was_sampled(make: Any) -> None:
    tokenizer = make()
    tokenizer.chat_template = LLAMA_2
    template, end = Template(tokenizer, CHAT), tokenizer.eos_token_id
    asked = tokenizer.encode("[INST] Sure? [/INST]", add_special_tokens=False)
    (seven,) = tokenizer.encode("7", add_special_tokens=False)[-1:]
    ended, cut = template.piece([user("Sure?")], last=end), template.piece([user("Sure?")], last=seven)
    assert end not in ended, "the end stands once"
    assert ended.tolist() == asked
    assert cut.tolist() == tokenizer.encode(" <eos>[INST] Sure? [/INST]", add_special_tokens=False)
    assert end in cut, "a turn that was cut is closed"
    conversation = Conversation(template, OPENING, template.whole(OPENING))
    for number in range(3):
        made, new = answer([seven, end], "7"), [user("Sure?")] if number else []
        context = say(conversation, made, *new)
        assert (context == end).sum() == number


def test_a_message_keeps_a_first_token_that_the_turn_before_was_cut_at() -> None:
    tokenizer = make_tokenizer(4096)
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    (seven,) = tokenizer.encode("7", add_special_tokens=False)
    (tag,) = tokenizer.encode("<answer>", add_special_tokens=False)
    for text, last in (("7?", seven), ("<answer>?", tag)):
        piece = Template(tokenizer, CHAT).piece([user(text)], last=last)
        assert tokenizer.decode(piece) == f"\n{text}\n"


def test_a_turn_that_was_cut_may_be_continued_as_it_stands() -> None:
    conversation = begun("qwen2_5")
    first = say(conversation, answer(ids("qwen2_5", "It i"), "It i", "length"))
    second = say(conversation, answer(ids("qwen2_5", "s 7"), "s 7"))
    assert len(second) == len(first) + 4
    assert [len(t.context) for t in conversation.completion({}, cut=False).turns] == [0, 0]
    assert conversation.messages[-1]["content"] == "It is 7"


def test_thoughts_stay_in_one_history_and_are_left_out_of_the_other() -> None:
    thought = "<think>three and four</think>7"
    made = answer(ids("qwen3", f"{thought}<|im_end|>"), thought)
    contexts = {}
    for history in ("append", "render"):
        conversation = begun("qwen3", history)  # type: ignore[arg-type]
        say(conversation, made)
        contexts[history] = say(conversation, answer([5]), user("Sure?"))
        turns = conversation.completion({}, cut=False).turns
        assert [t.anew for t in turns] == [False, history == "render"]
    text = {name: tokenizer_of("qwen3").decode(tokens) for name, tokens in contexts.items()}
    assert "three and four" in text["append"]
    assert "three and four" not in text["render"]


@pytest.mark.parametrize(
    ("family", "thought", "head"),
    [
        (
            "gptoss",
            "<|channel|>analysis<|message|>three and four",
            "<|end|><|start|>assistant<|channel|>final<|message|>",
        ),
        ("gptoss", "", "<|channel|>final<|message|>"),
        ("gemma4_v5", "<|channel>thought\nthree and four", "<channel|>"),
    ],
)
def test_a_history_that_is_rendered_has_of_a_turn_in_channels_what_follows_the_thought(
    family: str, thought: str, head: str
) -> None:
    tokenizer = tokenizer_of(family)
    made = ids(family, f"{thought}{head}It is 7{FAMILIES[family][0]}")
    conversation = begun(family, "render")
    say(conversation, answer(made, completed(tokenizer, silent_tokens(tokenizer), made.tolist(), "stop")))
    text = tokenizer.decode(say(conversation, answer([5]), user("Sure?")))
    assert text.count("It is 7") == 1
    assert "three and four" not in text
    assert "analysis<|message|>" not in text


@pytest.mark.parametrize("family", ["qwen2_5", "llama3"])
def test_a_tool_that_spells_control_tokens_ends_no_turn(family: str) -> None:
    control = [int(ids(family, token)[0]) for token in FAMILIES[family]]
    found = set()
    for output in ("done", "".join(FAMILIES[family])):
        conversation = begun(family)
        say(conversation, answer(ids(family, f"run it{FAMILIES[family][0]}")))
        found.add(int(np.isin(say(conversation, answer([7]), user(output)), control).sum()))
    assert len(found) == 1, "an honest and a hostile output have as many"


def test_changed_history_is_refused_by_its_message() -> None:
    conversation = begun("qwen2_5")
    with pytest.raises(EnvironmentFault, match="first turn"):
        conversation.context([user("another opening")])
    say(conversation, answer(ids("qwen2_5", "7<|im_end|>"), "7"))
    with pytest.raises(EnvironmentFault, match="says nothing"):
        conversation.context([])
    with pytest.raises(TypeError):
        conversation.messages[0]["content"] = "What is 1 + 1?"  # type: ignore[index]
    said = [dict(m) for m in conversation.messages]
    assert conversation.rest([*said, user("Sure?")]) == [user("Sure?")]
    with pytest.raises(EnvironmentFault):
        conversation.rest(said[:1])
    with pytest.raises(EnvironmentFault):
        conversation.context([{"role": "user", "content": 7}])
    assert conversation.turns == 1


def test_what_a_template_refuses_is_said_in_one_line() -> None:
    conversation = begun("gemma3")
    say(conversation, answer(ids("gemma3", "7<end_of_turn>")))
    with pytest.raises(EnvironmentFault, match="chat template"):
        conversation.context([user("Sure?"), user("Really?")])


@pytest.mark.parametrize("family", ["qwen2_5", "qwen3", "llama3", "phi3"])
def test_a_turn_that_was_cut_is_closed_by_tokens_that_are_not_trained_on(family: str) -> None:
    conversation, end = begun(family), ids(family, FAMILIES[family][0])[0]
    say(conversation, answer(ids(family, "It i"), "It i", "length"))
    say(conversation, answer(ids(family, "7")), user("Go on."))
    first, second = conversation.completion({}, cut=False).turns
    assert (first.sampled, len(first.context), second.context[0]) == (4, 0, end)
