"""Prompts as a model gets them, and every end of its completions: of model, tokenizer, template and user."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2Config

from hora_rl.common.answer_format import TAGS
from hora_rl.common.config import Config, DataConfig
from hora_rl.common.data.prompts import fingerprint, load_tokenizer, render, render_text
from hora_rl.common.data.special_tokens import (
    completed,
    named,
    silent_tokens,
    spoken,
    stop_texts,
    stop_tokens,
    turn_end,
)
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load
from tests.support.chat_model import END, TURN, TURN_END, chat_tokenizer

MODEL = Path(__file__).parents[2] / "deploy" / "demo" / "model"
PLAIN = {"path": "d.jsonl", "chat": False}


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(str(MODEL))


def test_a_chat_prompt_goes_through_the_template_with_its_system_message(tokenizer):
    data = DataConfig(path="arithmetic", system="Add.", template="Q: {problem}")
    tokens = render(tokenizer, "1+2=?", data)
    assert tokens.dtype == np.int32
    assert tokenizer.decode(tokens) == "Add.\nQ: 1+2=?\n"


def test_a_plain_prompt_is_the_text_alone_and_keeps_the_braces_of_latex(tokenizer):
    data = DataConfig(path="x", chat=False, template="\\boxed{} {problem}\n")
    written = "\\boxed{} \\frac{1}{2} {0} {problem}\n"
    assert render_text(tokenizer, "\\frac{1}{2} {0} {problem}", data) == written
    with_system = DataConfig(path="x", chat=False, system="Add.")
    assert tokenizer.decode(render(tokenizer, "1+2=?", with_system)) == "Add.\n\n1+2=?"


def test_a_folder_without_template_or_tokenizer_or_none_is_refused_in_one_line(tmp_path):
    shutil.copytree(MODEL, tmp_path / "m", ignore=shutil.ignore_patterns("*.jinja", "*.safetensors"))
    bare = load_tokenizer(str(tmp_path / "m"))
    with pytest.raises(ConfigError, match=r"data\.chat"):
        render(bare, "1+2=?", DataConfig(path="arithmetic"))
    assert len(render(bare, "1+2=?", DataConfig(path="arithmetic", chat=False)))
    (tmp_path / "config.json").write_text((MODEL / "config.json").read_text())
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match=rf"\A.*{folder}.*\Z"):
            load_tokenizer(str(folder))


def test_a_template_that_refuses_the_system_message_is_one_line_with_the_remedy(tokenizer):
    """Gemma's does, and HORA writes a system message by default."""
    strict = copy.deepcopy(tokenizer)
    strict.chat_template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
        "{% endif %}{{ messages[0]['content'] }}"
    )
    with pytest.raises(ConfigError, match=r"\A.*System role not supported.* data\.system.*\Z"):
        render(strict, "1+2=?", DataConfig(path="x", system="Add."))
    assert render_text(strict, "1+2=?", DataConfig(path="x")) == "1+2=?"


def test_the_fingerprint_changes_with_the_meaning_of_a_token_and_with_nothing_else(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    again = load_tokenizer(str(tmp_path))
    again.chat_template = None
    assert fingerprint(again) == fingerprint(tokenizer)
    again.add_tokens(["<more>"])
    assert fingerprint(again) != fingerprint(tokenizer)
    stored = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary = stored["model"]["vocab"]
    vocabulary["1"], vocabulary["2"] = vocabulary["2"], vocabulary["1"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    swapped = load_tokenizer(str(tmp_path))
    assert swapped.encode("1") == tokenizer.encode("2")
    assert fingerprint(swapped) != fingerprint(tokenizer)


def config(path: Path | str, **sections: Any) -> Config:
    return Config.model_validate({"model": {"path": str(path)}, "data": {"path": "d.jsonl"}} | sections)


def ends(tokenizer: Any, settings: Config) -> list[str]:
    return list(tokenizer.convert_ids_to_tokens(stop_tokens(settings, tokenizer)))


def test_under_a_chat_template_a_base_model_stops_at_the_end_of_its_turn_too(tmp_path: Path) -> None:
    tokenizer = chat_tokenizer()
    GenerationConfig(eos_token_id=tokenizer.convert_tokens_to_ids(END)).save_pretrained(tmp_path)
    assert ends(tokenizer, config(tmp_path)) == [END, TURN_END]
    assert named(tokenizer, stop_tokens(config(tmp_path), tokenizer)).startswith("<|endoftext|> (")
    assert ends(tokenizer, config(tmp_path, data=PLAIN)) == [END], "without the template no turn ends"
    assert ends(load_tokenizer(str(MODEL)), config(MODEL)) == ["<eos>"]


def test_all_ends_of_a_generation_configuration_count_or_those_of_the_model_s_own(tmp_path: Path) -> None:
    tokenizer = chat_tokenizer(template=None)
    both = tokenizer.convert_tokens_to_ids([TURN_END, TURN])
    Qwen2Config(eos_token_id=both[0]).save_pretrained(tmp_path)
    assert ends(tokenizer, config(tmp_path, data=PLAIN)) == [TURN_END, END]
    GenerationConfig(eos_token_id=both).save_pretrained(tmp_path)
    assert ends(tokenizer, config(tmp_path, data=PLAIN)) == [TURN_END, TURN, END]
    tokenizer.eos_token = None
    with pytest.raises(ConfigError, match=r"rollout\.stop"):
        stop_tokens(config(tmp_path / "none", data=PLAIN), tokenizer)


def test_the_user_s_own_end_is_a_token_or_a_text(tmp_path: Path) -> None:
    tokenizer = chat_tokenizer()
    settings = config(tmp_path, rollout={"stop": [TURN, "\n"]})
    own = (tokenizer.convert_tokens_to_ids(TURN), tokenizer.encode("\n")[0])
    assert stop_tokens(settings, tokenizer)[-2:] == own
    assert stop_texts([TURN, "\n", "</answer>"], tokenizer) == ("\n", "</answer>")
    several = config(tmp_path, rollout={"stop": ["</answer>"]})
    assert stop_tokens(several, tokenizer) == stop_tokens(config(tmp_path), tokenizer)
    tokenizer.eos_token, only = None, config(tmp_path / "none", data=PLAIN, rollout={"stop": ["."]})
    assert stop_tokens(only, tokenizer) == tuple(tokenizer.encode("."))
    with pytest.raises(ValueError, match=r"rollout\.stop\.0"):
        config(tmp_path, rollout={"stop": [""]})


@pytest.mark.parametrize(
    "of_turn",
    [
        "{{ m['content'] }}\n",
        "{{ raise_exception('no') if m['role'] == 'assistant' }}",
        "{{ 1 + m['content'] if m['role'] == 'assistant' }}",
        f"{{{{ m['content'] + '{TURN_END}' if m['role'] == 'user' }}}}",
    ],
)
def test_a_template_whose_turns_end_with_no_token_of_their_own_names_none(of_turn: str) -> None:
    template = f"{{% for m in messages %}}{of_turn}{{% endfor %}}"
    assert turn_end(chat_tokenizer(template), DataConfig(path="x")) is None


@pytest.mark.parametrize("tags", [(), TAGS])
def test_special_tokens_are_no_text_and_the_tags_always_are(tags: tuple[str, ...]) -> None:
    tokenizer, text = chat_tokenizer(tags=tags), "<think>é</think>\n<answer>2</answer>"
    ids = tokenizer.encode(f"{text}{TURN_END}{END}\n{TURN}")
    assert spoken(tokenizer, silent_tokens(tokenizer), ids) == f"{text}\n"


def test_a_tag_that_ends_a_completion_is_part_of_its_answer() -> None:
    config = load("tiny", ["rollout.stop=['</answer>']"])
    tokenizer = load_tokenizer(config.model.path)
    said = "<think>3+4</think><answer>7</answer>"
    ids = tokenizer.encode(said, add_special_tokens=False)
    assert ids[-1] in stop_tokens(config, tokenizer)
    silent = silent_tokens(tokenizer)
    assert completed(tokenizer, silent, ids, "stop") == said
    assert completed(tokenizer, silent, [*ids, tokenizer.eos_token_id], "stop") == said


@pytest.mark.parametrize(
    ("tokens", "stops", "text"),
    [
        (["a", "\n", "\nPro", "blem: b"], ["\n\nProblem:"], "a"),
        (["a.\n", "\nProblem:"], ["\n\nProblem:"], "a."),
        (["a", "bc", "d"], ["cd"], "ab"),
        (["abc", "d"], ["bcd"], "a"),
        (["abcd"], ["bc"], "a"),
        (["a", "b", "c"], ["c", "bc"], "a"),
        (["é", "ab"], ["ab"], "é"),
        (["a", "<t>", "b", "c"], ["bc"], "a"),
        (["a", "<t>", "b"], ["<t>b"], "a"),
        (["<answer>1", "</ans", "wer>\n"], ["</answer>"], "<answer>1</answer>"),
        (["1</answer>", "\n", "\n"], ["</answer>\n\n"], "1</answer>"),
        (["```", "python\nx\n", "```", "\n"], ["\n```\n"], "```python\nx\n```"),
        (["a", "<t>"], ["b"], "a"),
        (["ab", "c"], ["ab", "abc"], ""),
    ],
)
def test_a_text_ends_where_its_stop_begins_to_the_character(
    tokens: list[str], stops: list[str], text: str
) -> None:
    words = Tokenizer(models.WordLevel({word: place for place, word in enumerate(dict.fromkeys(tokens))}))
    words.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<t>")
    ids = tokenizer.convert_tokens_to_ids(tokens)
    assert completed(tokenizer, silent_tokens(tokenizer), ids, "stop", stops) == text
    everything = "".join(tokens).replace("<t>", "")
    assert completed(tokenizer, silent_tokens(tokenizer), ids, "length", stops) == everything
