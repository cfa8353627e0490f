"""Rows whose prompt is a conversation, in the forms in which files and libraries hold it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hora_rl.actors.data.datasets import load_dataset, load_held_out
from hora_rl.common.config import DataConfig, EvaluationConfig
from hora_rl.common.data.prompts import make_prompt, render_text
from hora_rl.common.data.rows import read_prompt
from hora_rl.common.data.table_files import DataError
from tests.support.chat_model import chat_tokenizer
from tests.support.jsonl import write_lines, write_table

SHORT = [{"role": "user", "content": "2+2?"}]
LONG = [
    {"role": "system", "content": "Add."},
    {"role": "user", "content": "1+1?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "And 2+2?"},
]
DATA = DataConfig(path="x", prompt_field="prompt", system=None)


def rendered(rows: Any, place: int = 0, data: DataConfig = DATA) -> str:
    tokenizer = chat_tokenizer()
    prompt = make_prompt(tokenizer, 0, rows[place], data)
    text = render_text(tokenizer, rows[place].problem, data, rows[place].messages)
    assert tokenizer.decode(prompt.tokens) == text
    assert prompt.text == rows[place].problem
    return text


def written(path: Path, prompts: list[Any]) -> Path:
    return write_table(path, [{"prompt": prompt, "answer": "4"} for prompt in prompts])


@pytest.mark.parametrize("name", ["d.jsonl", "d.parquet", "json.csv", "python.csv"])
def test_a_conversation_is_rendered_as_it_is_and_its_last_turn_is_the_problem(
    tmp_path: Path, name: str
) -> None:
    dump = {"json.csv": json.dumps, "python.csv": str}.get(name, lambda messages: messages)
    path = written(tmp_path / name, [dump(SHORT), dump(LONG)])
    data = DATA.model_copy(update={"path": str(path)})
    for found in (load_dataset(data), load_held_out(EvaluationConfig(path=str(path)), data)):
        assert [row.problem for row in found.rows] == ["2+2?", "And 2+2?"]
        assert found.rejected == ()
    expected = chat_tokenizer().apply_chat_template(LONG, add_generation_prompt=True, tokenize=False)
    assert rendered(found.rows, 1) == expected


@pytest.mark.parametrize(
    "value",
    [
        [{"role": "user", "content": [{"type": "text", "text": "2+"}, {"type": "text", "text": "2?"}]}],
        {"role": ["user"], "content": ["2+2?"]},
        np.array(SHORT),
        [{"role": "user", "content": np.array([{"type": "text", "text": "2+2?"}])}],
        [{**SHORT[0], "tool_calls": None, "name": None}],
    ],
)
def test_messages_are_the_same_in_every_form(value: Any) -> None:
    assert read_prompt(value) == ("2+2?", tuple(SHORT))


@pytest.mark.parametrize(
    "value",
    [
        [*LONG, {"role": "assistant", "content": "4"}],
        LONG[:1],
        [{"from": "human", "value": "2+2?"}],
        [{"role": "human", "content": "2+2?"}],
        [{"role": "user", "content": [{"type": "image"}]}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": " "}],
        [{"role": "user", "content": "\ud800"}],
        "[{'role': 'user' 'content': 'x'",
        [],
        7,
        {"text": "x"},
    ],
)
def test_what_is_no_prompt_is_left_out_with_its_defect(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as defect:  # noqa: PT011
        read_prompt(value)
    path = write_lines(tmp_path / "d.jsonl", [{"prompt": value, "answer": "4"}])
    with pytest.raises(DataError) as refused:
        load_dataset(DATA.model_copy(update={"path": str(path)}))
    assert f"'prompt' {defect.value}" in str(refused.value)


def test_the_system_message_of_a_row_takes_the_place_of_the_data_set_s_and_the_template_is_of_its_last_turn(
    tmp_path: Path,
) -> None:
    path = written(tmp_path / "d.jsonl", [SHORT, LONG, "2+2?"])
    data = DATA.model_copy(update={"path": str(path), "system": "Own.", "template": "Q: {problem}"})
    rows = load_dataset(data).rows
    assert rendered(rows, 0, data) == rendered(rows, 2, data)
    assert "system\nOwn.<|im_end|>\n<|im_start|>user\nQ: 2+2?" in rendered(rows, 0, data)
    text = rendered(rows, 1, data)
    assert "Own." not in text
    assert text.count("Q: ") == 1
    assert "Q: And 2+2?" in text
