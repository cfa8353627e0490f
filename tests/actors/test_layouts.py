"""Rows in the layouts of published data sets, made here, through the loader and the verifier: with data.path
alone the right answer earns 1 and a wrong one 0. Rows in forms that people bring: read as they are, or
refused with a remedy that helps."""

import base64
import json
import pickle
import zlib
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from hora_rl.actors.data.datasets import Dataset, load_dataset, load_held_out
from hora_rl.actors.data.gold_answers import gold_test
from hora_rl.actors.verifier.pool import VerifierPool
from hora_rl.common.config import DataConfig, EvaluationConfig, RewardConfig
from hora_rl.common.data import layouts
from hora_rl.common.data.code import code_block
from hora_rl.common.data.rewards import Answer
from hora_rl.common.data.table_files import DataError
from tests.support.jsonl import write_lines, write_table

TABLE = yaml.safe_load(Path(__file__).with_name("layouts.yaml").read_text("utf-8"))
MATH, CODE = TABLE["problems"], TABLE["programs"]
ASKED, READ = MATH["MATH12k"]["row"]["problem"], CODE["APPS"]["row"]["question"]
PAIR = {"input": "2 3\n", "output": "5\n"}
CALL = {"input": "2\n3", "output": "5", "testtype": "functional"}
STARTER = CODE["APPS, calls"]["row"]["starter_code"]


def live(row: dict[str, Any], **more: str) -> dict[str, Any]:
    """A row of LiveCodeBench with its hidden tests, which are a pickle."""
    hidden = base64.b64encode(zlib.compress(pickle.dumps(row["public_test_cases"]))).decode()
    return {**row, "private_test_cases": hidden, **more}


for case in CODE.values():
    if "public_test_cases" in case["row"]:
        case["row"] = live(case["row"])


def loaded(folder: Path, rows: list[dict[str, Any]], reward: RewardConfig, **keys: Any) -> Any:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_dataset(DataConfig(path=str(path), **keys), gold_test(reward))


async def earned(reward: RewardConfig, row: Any, *completions: str) -> list[float]:
    answers = [Answer(row.problem, text, row.answer, row.columns) for text in completions]
    with closing(VerifierPool(reward)) as pool:
        return [next(iter(scored.values())) for scored in await pool.score_batch(answers)]


@pytest.mark.parametrize("name", MATH)
async def test_a_layout_of_problems_has_its_answer_and_says_where(tmp_path: Path, name: str) -> None:
    row, says = MATH[name]["row"], MATH[name]["layout"]
    reward = RewardConfig(weights={"accuracy": 1.0}, answer="boxed")
    data = loaded(tmp_path, [row], reward)
    [found] = data.rows
    assert (found.problem, found.answer.strip("$")) == (ASKED, "34")
    assert data.layouts == ((says,) if says else ())
    assert await earned(reward, found, r"So \boxed{34}", r"So \boxed{30}") == [1.0, 0.0]


@pytest.mark.parametrize("name", CODE)
async def test_a_layout_of_programs_has_its_tests_and_a_solution_that_passes(
    tmp_path: Path, name: str
) -> None:
    row, program, says = (CODE[name][key] for key in ("row", "program", "layout"))
    reward = RewardConfig(weights={"code_tests": 1.0}, answer="final")
    data = loaded(tmp_path, [row], reward)
    [found] = data.rows
    assert data.layouts == ((says,) if says else ())
    right, wrong = code_block(program), code_block(program.replace("a + b", "a - b"))
    own = layouts.solution_of(reward.code_tests, found.columns) or program
    assert await earned(reward, found, right, wrong, code_block(own)) == [1.0, 0.0, 1.0]


def test_what_a_program_must_define_stands_below_its_problem(tmp_path: Path) -> None:
    reward = RewardConfig(weights={"code_tests": 1.0}, answer="final")
    for name, shown in (
        ("MBPP", "assert add(two, 3) == 5"),
        ("APPS, calls", STARTER.strip()),
        ("LiveCodeBench, functional", STARTER.strip()),
    ):
        [row] = loaded(tmp_path, [CODE[name]["row"]], reward).rows
        assert row.problem.endswith(f"```python\n{shown}\n```"), name
    for name in ("HumanEval", "APPS", "LiveCodeBench"):
        [row] = loaded(tmp_path, [CODE[name]["row"]], reward).rows
        assert row.problem in (READ, CODE["HumanEval"]["row"]["prompt"]), name


def test_pickled_tests_are_neither_read_nor_kept_and_json_ones_are_used(tmp_path: Path) -> None:
    reward = RewardConfig(weights={"code_tests": 1.0}, answer="final")
    plain = json.dumps([{"input": "1 1\n", "output": "2\n", "testtype": "stdin"}])
    row = CODE["LiveCodeBench"]["row"]
    [hidden, read] = loaded(tmp_path, [row, row | {"private_test_cases": plain}], reward).rows
    assert "private_test_cases" not in hidden.columns
    assert len(layouts.tests_of(reward.code_tests, hidden.columns).pairs) == 1
    assert len(layouts.tests_of(reward.code_tests, read.columns).pairs) == 2


def test_a_row_of_a_layout_without_an_answer_is_left_out(tmp_path: Path) -> None:
    reward = RewardConfig(weights={"accuracy": 1.0}, answer="boxed")
    proof = MATH["NuminaMath-1.5"]["row"] | {"answer": "proof"}
    open_end = MATH["NuminaMath-CoT and -TIR"]["row"] | {"solution": "It follows."}
    found = loaded(tmp_path, [proof, open_end, MATH["MATH"]["row"]], reward)
    assert [row.answer for row in found.rows] == ["34"]
    assert [rejected.reason for rejected in found.rejected] == [
        "'answer' holds no answer: 'proof'",
        "'solution' holds no answer: 'It follows.'",
    ]


def test_held_out_problems_may_have_a_layout_of_their_own(tmp_path: Path) -> None:
    reward = RewardConfig(weights={"accuracy": 1.0}, answer="boxed")
    path = tmp_path / "held.jsonl"
    path.write_text(json.dumps(MATH["GSM8K"]["row"] | {"task": 1}) + "\n")
    data = DataConfig(path="mine.jsonl", prompt_field="exercise", answer_field="sum")
    [found] = load_held_out(EvaluationConfig(path=str(path)), data, gold_test(reward)).rows
    assert (found.problem, found.answer) == (ASKED, "34")
    own = data.model_copy(update={"prompt_field": "answer"})
    assert load_held_out(EvaluationConfig(path=str(path)), own, gold_test(reward)).rows[0].problem != ASKED


def test_a_function_is_named_by_the_row_or_its_starter_code(tmp_path: Path) -> None:
    reward = RewardConfig(weights={"code_tests": 1.0}, answer="final")
    for more in ({"fn_name": "add"}, {"metadata": {"func_name": "add"}}, {"starter_code": STARTER}):
        [row] = loaded(tmp_path, [{"problem": "Add.", "tests": [CALL], **more}], reward).rows
        assert layouts.tests_of(reward.code_tests, row.columns).entry == "add"


def test_keys_that_are_set_win_over_a_layout(tmp_path: Path) -> None:
    reward = RewardConfig(weights={"accuracy": 1.0}, answer="boxed")
    row = MATH["GSM8K"]["row"] | {"other": "2 + 2?", "gold": 4}
    [found] = loaded(tmp_path, [row], reward, prompt_field="other", answer_field="gold").rows
    assert (found.problem, found.answer) == ("2 + 2?", "4")
    [found] = loaded(tmp_path, [row], reward, answer_field="answer").rows
    assert (found.problem, found.answer) == (ASKED, "34"), "the layout's own column is read as in the layout"
    with pytest.raises(DataError, match=r"'nothing'.*reward_model\.ground_truth.*data\.answer_field"):
        loaded(tmp_path, [MATH["DAPO-Math-17k"]["row"]], reward, answer_field="nothing")
    programs = RewardConfig(weights={"code_tests": 1.0}, answer="final")
    own = CODE["MBPP"]["row"] | {"tests": ["assert add(0, 0) == 0"]}
    [found] = loaded(tmp_path, [own], programs).rows
    assert layouts.tests_of(programs.code_tests, found.columns).asserts == "assert add(0, 0) == 0"


QUESTION, TURN = "What is 30 + 4?", [{"role": "user", "content": "What is 30 + 4?"}]
SOLVED = r"We add: $30 + 4 = \boxed{34}$."


def read(path: Path, **keys: Any) -> Dataset:
    return load_dataset(DataConfig(path=str(path), **keys), gold_test(RewardConfig()))


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("d.json", {"problem": QUESTION, "answer": 34}),
        ("d.tsv", {"problem": QUESTION, "answer": 34}),
        ("d.csv", {"problem": QUESTION, "answer": 34}),
        ("d.csv", {"prompt": TURN, "reward_model": {"style": "rule", "ground_truth": "34"}}),
        ("d.parquet", {"problem": QUESTION, "answer": Decimal("34.00")}),
        ("d.jsonl", {"Problem": QUESTION, "Answer": 34, "ID": "2024-I-1"}),
        ("d.jsonl", {"messages": TURN, "answer": "34"}),
        ("d.jsonl", {"problem": QUESTION, "answer": SOLVED}),
        ("d.jsonl", {"prompt": TURN, "solution": "<think>30+4</think> <answer>34</answer>"}),
        ("d.jsonl", {"question": QUESTION, "options": ["A) 33", "B) 34"], "answer": "34"}),
    ],
)
def test_a_row_is_read_whatever_its_file_and_the_names_of_its_columns(
    tmp_path: Path, name: str, row: dict[str, Any]
) -> None:
    row_of = read(write_table(tmp_path / name, [row], "\t" if name == "d.tsv" else ";")).rows[0]
    assert (row_of.problem, row_of.answer) == (QUESTION, "34")


TURNS = [*TURN, {"role": "assistant", "content": SOLVED}]
SHARED = [{"from": "human", "value": QUESTION}, {"from": "gpt", "value": SOLVED}]


FOUND_BY = [
    ({"messages": TURNS}, "messages.0.content", "messages.1.content"),
    ({"conversations": SHARED}, "conversations.0.value", "conversations.1.value"),
    ({"prompt": QUESTION, "completion": SOLVED}, None, "completion"),
    ({"prompt": QUESTION, "about": json.dumps({"ground_truth": "34"})}, None, "about.ground_truth"),
    (
        {"prompt": TURN, "reward_model": {"ground_truth": {"target": ["34", "thirty-four"]}}},
        None,
        "reward_model.ground_truth.target.0",
    ),
    ({"prompt": TURN, "reward_model": {"ground_truth": ["34", "34.0"]}}, None, "reward_model.ground_truth.0"),
    ({"instruction": QUESTION, "input": "", "output": "34"}, "instruction", "output"),
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
    assert (read_row.problem, read_row.answer) == (QUESTION, "34")


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"question": QUESTION, "options": ["33", "34"], "answer": "B"}, "'options'"),
        ({"question": QUESTION, "choices": ["33", "34"], "answer": 1}, "'choices'"),
        ({"question": QUESTION, "choices": {"text": ["33", "34"]}, "answer": "B"}, "'choices.text'"),
        ({"problem": f"<image>{QUESTION}", "images": ["a.png"], "answer": "34"}, "'images'"),
    ],
)
def test_a_row_whose_prompt_lacks_what_its_answer_needs_is_left_out_and_said(
    tmp_path: Path, row: dict[str, Any], named: str
) -> None:
    good = {"problem": QUESTION, "images": [], "answer": "34", "options": None}
    write_lines(path := tmp_path / "d.jsonl", [row, good])
    found = read(path)
    assert [(r.location, r.answer) for r in found.rows] == [(f"{path}:2", "34")]
    assert named in found.rejected[0].reason
    shown = {"question": f"{QUESTION} A: 33, B: 34", "options": ["33", "34"], "answer": "B"}
    assert read(write_lines(tmp_path / "shown.jsonl", [shown])).rows[0].answer == "B"


def test_a_row_of_a_csv_is_named_by_the_line_at_which_it_begins(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text('question,answer\n"one\ntwo","3\n#### 3"\n\n"four\n",\nfive,5\n')
    found = read(path)
    assert [row.location for row in found.rows] == [f"{path}:2", f"{path}:8"]
    assert [row.location for row in found.rejected] == [f"{path}:6"]
