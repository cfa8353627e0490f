"""Rows in forms that people bring: read as they are, or refused with a remedy that helps."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from hora_rl.actors.data.datasets import Dataset, load_dataset
from hora_rl.actors.data.gold_answers import gold_test
from hora_rl.common.config import DataConfig, RewardConfig
from hora_rl.common.data.table_files import DataError
from tests.support.jsonl import write_lines, write_table

ASKED, TURN = "What is 30 + 4?", [{"role": "user", "content": "What is 30 + 4?"}]
SOLVED = r"We add: $30 + 4 = \boxed{34}$."


def read(path: Path, **keys: Any) -> Dataset:
    return load_dataset(DataConfig(path=str(path), **keys), gold_test(RewardConfig()))


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("d.json", {"problem": ASKED, "answer": 34}),
        ("d.tsv", {"problem": ASKED, "answer": 34}),
        ("d.csv", {"problem": ASKED, "answer": 34}),
        ("d.csv", {"prompt": TURN, "reward_model": {"style": "rule", "ground_truth": "34"}}),
        ("d.parquet", {"problem": ASKED, "answer": Decimal("34.00")}),
        ("d.jsonl", {"Problem": ASKED, "Answer": 34, "ID": "2024-I-1"}),
        ("d.jsonl", {"messages": TURN, "answer": "34"}),
        ("d.jsonl", {"problem": ASKED, "answer": SOLVED}),
        ("d.jsonl", {"prompt": TURN, "solution": "<think>30+4</think> <answer>34</answer>"}),
        ("d.jsonl", {"question": ASKED, "options": ["A) 33", "B) 34"], "answer": "34"}),
    ],
)
def test_a_row_is_read_whatever_its_file_and_the_names_of_its_columns(
    tmp_path: Path, name: str, row: dict[str, Any]
) -> None:
    row_of = read(write_table(tmp_path / name, [row], "\t" if name == "d.tsv" else ";")).rows[0]
    assert (row_of.problem, row_of.answer) == (ASKED, "34")


TURNS = [*TURN, {"role": "assistant", "content": SOLVED}]
SHARED = [{"from": "human", "value": ASKED}, {"from": "gpt", "value": SOLVED}]


FOUND_BY = [
    ({"messages": TURNS}, "messages.0.content", "messages.1.content"),
    ({"conversations": SHARED}, "conversations.0.value", "conversations.1.value"),
    ({"prompt": ASKED, "completion": SOLVED}, None, "completion"),
    ({"prompt": ASKED, "about": json.dumps({"ground_truth": "34"})}, None, "about.ground_truth"),
    (
        {"prompt": TURN, "reward_model": {"ground_truth": {"target": ["34", "thirty-four"]}}},
        None,
        "reward_model.ground_truth.target.0",
    ),
    ({"prompt": TURN, "reward_model": {"ground_truth": ["34", "34.0"]}}, None, "reward_model.ground_truth.0"),
    ({"instruction": ASKED, "input": "", "output": "34"}, "instruction", "output"),
]


@pytest.mark.parametrize(("row", "prompt", "answer"), FOUND_BY)
def test_a_refusal_names_the_columns_that_keys_can_name_also_nested_ones(
    tmp_path: Path, row: dict[str, Any], prompt: str | None, answer: str
) -> None:
    path = write_lines(tmp_path / "d.jsonl", [row])
    with pytest.raises(DataError) as refused:
        read(path)
    key = "data.answer_field" if prompt is None else "data.prompt_field"
    assert all(word in str(refused.value) for word in (key, prompt or answer, answer))
    [read_row] = read(path, prompt_field=prompt, answer_field=answer).rows
    assert (read_row.problem, read_row.answer) == (ASKED, "34")


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"question": ASKED, "options": ["33", "34"], "answer": "B"}, "'options'"),
        ({"question": ASKED, "choices": ["33", "34"], "answer": 1}, "'choices'"),
        ({"question": ASKED, "choices": {"text": ["33", "34"]}, "answer": "B"}, "'choices.text'"),
        ({"problem": f"<image>{ASKED}", "images": ["a.png"], "answer": "34"}, "'images'"),
    ],
)
def test_a_row_whose_prompt_lacks_what_its_answer_needs_is_left_out_and_said(
    tmp_path: Path, row: dict[str, Any], named: str
) -> None:
    good = {"problem": ASKED, "images": [], "answer": "34", "options": None}
    write_lines(path := tmp_path / "d.jsonl", [row, good])
    found = read(path)
    assert [(r.location, r.answer) for r in found.rows] == [(f"{path}:2", "34")]
    assert named in found.rejected[0].reason
    shown = {"question": f"{ASKED} A: 33, B: 34", "options": ["33", "34"], "answer": "B"}
    assert read(write_lines(tmp_path / "shown.jsonl", [shown])).rows[0].answer == "B"


def test_a_row_of_a_csv_is_named_by_the_line_at_which_it_begins(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text('question,answer\n"one\ntwo","3\n#### 3"\n\n"four\n",\nfive,5\n')
    found = read(path)
    assert [row.location for row in found.rows] == [f"{path}:2", f"{path}:8"]
    assert [row.location for row in found.rejected] == [f"{path}:6"]
