"""Rows in the layouts of published data sets, made here, through the loader and the verifier: with data.path
alone the right answer earns 1 and a wrong one 0."""

import base64
import json
import pickle
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hora_rl.actors.data.datasets import load_dataset, load_held_out
from hora_rl.actors.data.gold_answers import gold_test
from hora_rl.actors.verifier.pool import VerifierPool
from hora_rl.common.config import DataConfig, EvaluationConfig, RewardConfig
from hora_rl.common.data.code import code_block
from hora_rl.common.data.layouts import solution_of, tests_of
from hora_rl.common.data.rewards import Answer
from hora_rl.common.data.table_files import DataError

ASKED = "What is 30 + 4?"
SOLVED = r"We add: $30 + 4 = \boxed{30} + 4$, so it is $\boxed{34}$."
TURN = [{"role": "user", "content": ASKED}]
TURNS = [*TURN, {"role": "assistant", "content": SOLVED}]
ADD = "Write a function to add two numbers."
PLUS = "def add(a, b):\n    return a + b"
METHOD = "class Solution:\n    def add(self, a: int, b: int) -> int:\n        return a + b"
HEAD = 'from typing import List\n\n\ndef add(a: int, b: int) -> int:\n    """ Add a and b.\n    """\n'
CHECK = "\n\nMETADATA = {'author': 'x'}\n\n\ndef check(candidate):\n    assert candidate(2, 3) == 5\n"
READ = "Read two numbers and print their sum."
SUM = "a, b = map(int, input().split())\nprint(a + b)"
PAIR = {"input": "2 3\n", "output": "5\n"}
CALL = {"input": "2\n3", "output": "5", "testtype": "functional"}
STARTER = "class Solution:\n    def add(self, a: int, b: int) -> int:\n        "


def verl(truth: str, prompt: Any = TURN, ability: str = "MATH") -> dict[str, Any]:
    return {
        "data_source": "math_dapo",
        "prompt": prompt,
        "ability": ability,
        "reward_model": {"ground_truth": truth, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": "9a9b6eb4", "split": "train"},
    }


def live(tests: list[dict[str, str]], **more: str) -> dict[str, Any]:
    hidden = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()
    return {
        "question_title": "Sum",
        "question_content": READ,
        "platform": "atcoder",
        "starter_code": "",
        "public_test_cases": json.dumps(tests),
        "private_test_cases": hidden,
        "metadata": "{}",
        **more,
    }


MATH: dict[str, tuple[dict[str, Any], str]] = {
    "GSM8K": (
        {"question": ASKED, "answer": "30 and 4 are <<30+4=34>>34.\n#### 34"},
        "GSM8K; answer behind ####",
    ),
    "MATH": (
        {"problem": ASKED, "level": "Level 1", "type": "Algebra", "solution": SOLVED},
        r"MATH; answer in \boxed{} of solution",
    ),
    "MATH-500": (
        {"problem": ASKED, "solution": SOLVED, "answer": "34", "subject": "Algebra", "level": 2},
        "MATH; answer in answer",
    ),
    "MATH12k": ({"problem": ASKED, "answer": "34"}, ""),
    "DAPO-Math-17k": (verl("34"), "verl, as DAPO-Math-17k; answer or tests in reward_model.ground_truth"),
    "DAPO-Math-17k, processed": (
        {**verl("34", ASKED), "solution": "34", "source_prompt": TURN},
        "verl, as DAPO-Math-17k; answer or tests in reward_model.ground_truth",
    ),
    "Skywork-OR1": (
        verl('["34"]'),
        "verl, as DAPO-Math-17k; answer or tests in reward_model.ground_truth",
    ),
    "DeepScaleR": (
        {"problem": ASKED, "answer": "34", "solution": "See above."},
        "DeepScaleR; answer in answer",
    ),
    "Big-Math": (
        {
            "problem": ASKED,
            "answer": "34",
            "source": "orca",
            "domain": ["Algebra"],
            "llama8b_solve_rate": 0.5,
        },
        "Big-Math; answer in answer",
    ),
    "OpenR1-Math": (
        {
            "problem": ASKED,
            "solution": "No box.",
            "answer": "34",
            "problem_type": "Algebra",
            "question_type": "math-word-problem",
            "generations": [SOLVED],
            "messages": TURNS,
        },
        "OpenR1-Math; answer in answer",
    ),
    "NuminaMath-CoT and -TIR": (
        {"source": "cn_k12", "problem": ASKED, "solution": SOLVED, "messages": TURNS},
        r"NuminaMath; answer in \boxed{} of solution",
    ),
    "NuminaMath-1.5": (
        {
            "problem": ASKED,
            "solution": SOLVED,
            "answer": "34",
            "problem_type": "Algebra",
            "question_type": "math-word-problem",
            "problem_is_valid": "Yes",
        },
        "NuminaMath-1.5; answer in answer",
    ),
    "TRL, messages": ({"prompt": TURN, "solution": "$34$"}, "TRL; answer in solution"),
    "TRL, text": ({"prompt": ASKED, "solution": SOLVED}, "TRL; answer in solution"),
    "TRL, ground truth": ({"prompt": TURN, "ground_truth": 34}, "columns prompt and ground_truth"),
    "OpenRLHF": ({"context_messages": TURN, "label": "34"}, "columns context_messages and label"),
    "DeepMath": (
        {"question": ASKED, "final_answer": "34", "r1_solution_1": SOLVED},
        "columns question and final_answer",
    ),
    "NeMo": ({"problem": ASKED, "expected_answer": "34"}, "columns problem and expected_answer"),
}

CODE: dict[str, tuple[dict[str, Any], str, str]] = {
    "MBPP": (
        {
            "task_id": 1,
            "text": ADD,
            "code": PLUS,
            "test_setup_code": "two = 2",
            "test_list": ["assert add(two, 3) == 5"],
            "challenge_test_list": ["assert add(1, 1) == 3"],
        },
        PLUS,
        "MBPP; tests in test_list",
    ),
    "MBPP, sanitized": (
        {
            "task_id": 2,
            "prompt": ADD,
            "code": PLUS,
            "test_imports": ["import math"],
            "test_list": ["assert math.isclose(add(2, 3), 5)"],
        },
        PLUS,
        "MBPP; tests in test_list",
    ),
    "HumanEval": (
        {
            "task_id": "HumanEval/0",
            "prompt": HEAD,
            "canonical_solution": "    return a + b\n",
            "test": CHECK,
            "entry_point": "add",
        },
        PLUS,
        "HumanEval; tests in test",
    ),
    "APPS": (
        {
            "problem_id": 0,
            "question": READ,
            "solutions": json.dumps([SUM]),
            "starter_code": "",
            "input_output": json.dumps({"inputs": ["2 3\n"], "outputs": ["5\n"]}),
        },
        SUM,
        "APPS or TACO; tests in input_output",
    ),
    "APPS, calls": (
        {
            "question": ADD,
            "solutions": json.dumps([METHOD]),
            "starter_code": STARTER,
            "input_output": json.dumps({"fn_name": "add", "inputs": [[2, 3]], "outputs": [[5]]}),
        },
        METHOD,
        "APPS or TACO; tests in input_output",
    ),
    "TACO": (
        {
            "question": READ,
            "solutions": json.dumps([SUM]),
            "starter_code": "",
            "input_output": json.dumps({"inputs": [["2 3", ""]], "outputs": [["5"]]}),
        },
        SUM,
        "APPS or TACO; tests in input_output",
    ),
    "LiveCodeBench": (
        live([PAIR | {"testtype": "stdin"}]),
        SUM,
        "LiveCodeBench; tests in public_test_cases; private_test_cases is not read where it is a pickle",
    ),
    "LiveCodeBench, functional": (
        live([CALL], starter_code=STARTER, metadata='{"func_name": "add"}'),
        METHOD,
        "LiveCodeBench; tests in public_test_cases; private_test_cases is not read where it is a pickle",
    ),
    "LeetCodeDataset": (
        {
            "problem_description": ADD,
            "starter_code": STARTER,
            "entry_point": "Solution().add",
            "prompt": "import math\nfrom typing import *\n",
            "completion": METHOD,
            "test": CHECK,
        },
        METHOD,
        "LeetCodeDataset; tests in test",
    ),
    "verl, programs": (
        verl(json.dumps({"inputs": ["2 3\n"], "outputs": ["5\n"]}), ability="code"),
        SUM,
        "verl, as DAPO-Math-17k; answer or tests in reward_model.ground_truth",
    ),
    "DeepCoder": (
        {
            "problem": ADD,
            "solutions": [METHOD],
            "tests": json.dumps([CALL | {"metadata": {"func_name": "add"}}]),
        },
        METHOD,
        "",
    ),
}


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
    row, says = MATH[name]
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
    row, program, says = CODE[name]
    reward = RewardConfig(weights={"code_tests": 1.0}, answer="final")
    data = loaded(tmp_path, [row], reward)
    [found] = data.rows
    assert data.layouts == ((says,) if says else ())
    right, wrong = code_block(program), code_block(program.replace("a + b", "a - b"))
    own = solution_of(reward.code_tests, found.columns) or program
    assert await earned(reward, found, right, wrong, code_block(own)) == [1.0, 0.0, 1.0]


def test_what_a_program_must_define_stands_below_its_problem(tmp_path: Path) -> None:
    reward = RewardConfig(weights={"code_tests": 1.0}, answer="final")
    for name, shown in (
        ("MBPP", "assert add(two, 3) == 5"),
        ("APPS, calls", STARTER.strip()),
        ("LiveCodeBench, functional", STARTER.strip()),
    ):
        [row] = loaded(tmp_path, [CODE[name][0]], reward).rows
        assert row.problem.endswith(f"```python\n{shown}\n```"), name
    for name in ("HumanEval", "APPS", "LiveCodeBench"):
        [row] = loaded(tmp_path, [CODE[name][0]], reward).rows
        assert row.problem in (READ, HEAD), name


def test_pickled_tests_are_neither_read_nor_kept_and_json_ones_are_used(tmp_path: Path) -> None:
    reward = RewardConfig(weights={"code_tests": 1.0}, answer="final")
    plain = json.dumps([{"input": "1 1\n", "output": "2\n", "testtype": "stdin"}])
    [hidden, read] = loaded(tmp_path, [live([PAIR]), live([PAIR], private_test_cases=plain)], reward).rows
    assert "private_test_cases" not in hidden.columns
    assert len(tests_of(reward.code_tests, hidden.columns).pairs) == 1
    assert len(tests_of(reward.code_tests, read.columns).pairs) == 2


def test_a_row_of_a_layout_without_an_answer_is_left_out(tmp_path: Path) -> None:
    reward = RewardConfig(weights={"accuracy": 1.0}, answer="boxed")
    proof = MATH["NuminaMath-1.5"][0] | {"answer": "proof"}
    open_end = MATH["NuminaMath-CoT and -TIR"][0] | {"solution": "It follows."}
    found = loaded(tmp_path, [proof, open_end, MATH["MATH"][0]], reward)
    assert [row.answer for row in found.rows] == ["34"]
    assert [rejected.reason for rejected in found.rejected] == [
        "'answer' holds no answer: 'proof'",
        "'solution' holds no answer: 'It follows.'",
    ]


def test_held_out_problems_may_have_a_layout_of_their_own(tmp_path: Path) -> None:
    reward = RewardConfig(weights={"accuracy": 1.0}, answer="boxed")
    path = tmp_path / "held.jsonl"
    path.write_text(json.dumps(MATH["GSM8K"][0] | {"task": 1}) + "\n")
    data = DataConfig(path="mine.jsonl", prompt_field="exercise", answer_field="sum")
    [found] = load_held_out(EvaluationConfig(path=str(path)), data, gold_test(reward)).rows
    assert (found.problem, found.answer) == (ASKED, "34")
    own = data.model_copy(update={"prompt_field": "answer"})
    assert load_held_out(EvaluationConfig(path=str(path)), own, gold_test(reward)).rows[0].problem != ASKED


def test_a_function_is_named_by_the_row_or_its_starter_code(tmp_path: Path) -> None:
    reward = RewardConfig(weights={"code_tests": 1.0}, answer="final")
    for more in ({"fn_name": "add"}, {"metadata": {"func_name": "add"}}, {"starter_code": STARTER}):
        [row] = loaded(tmp_path, [{"problem": ADD, "tests": [CALL], **more}], reward).rows
        assert tests_of(reward.code_tests, row.columns).entry == "add"


def test_keys_that_are_set_win_over_a_layout(tmp_path: Path) -> None:
    reward = RewardConfig(weights={"accuracy": 1.0}, answer="boxed")
    row = MATH["GSM8K"][0] | {"other": "2 + 2?", "gold": 4}
    [found] = loaded(tmp_path, [row], reward, prompt_field="other", answer_field="gold").rows
    assert (found.problem, found.answer) == ("2 + 2?", "4")
    [found] = loaded(tmp_path, [row], reward, answer_field="answer").rows
    assert (found.problem, found.answer) == (ASKED, "34"), "the layout's own column is read as in the layout"
    with pytest.raises(
        DataError, match=r"no column 'nothing'.*reward_model\.ground_truth.*data\.answer_field"
    ):
        loaded(tmp_path, [MATH["DAPO-Math-17k"][0]], reward, answer_field="nothing")
    programs = RewardConfig(weights={"code_tests": 1.0}, answer="final")
    own = CODE["MBPP"][0] | {"tests": ["assert add(0, 0) == 0"]}
    [found] = loaded(tmp_path, [own], programs).rows
    assert tests_of(programs.code_tests, found.columns).asserts == "assert add(0, 0) == 0"
