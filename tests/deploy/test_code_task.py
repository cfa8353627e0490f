"""What `hora check` shows of a code task, and which rows it names, before a run starts."""

import json
from pathlib import Path
from typing import Any

import pytest

from hora_rl.actors.verifier.sandbox.sandbox import Sandbox
from hora_rl.common.config import Config
from hora_rl.common.errors import ConfigError
from hora_rl.deploy.checks import task as checked_task
from hora_rl.deploy.checks.findings import Finding, Target
from hora_rl.deploy.checks.run_checks import CHECKS, examine
from hora_rl.deploy.checks.sources import data
from hora_rl.deploy.checks.task import sandbox, task
from tests.deploy.test_task import save_model

PLUS = {"problem": "Read a number and print it plus one.", "tests": [{"input": "1\n", "output": "2\n"}]}
SOLUTION = "print(int(input()) + 1)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(tmp_path / "model")
    return tmp_path


def config(folder: Path, *rows: dict[str, Any], **reward: Any) -> Config:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Config.model_validate(
        {
            "model": {"path": str(folder / "model")},
            "data": {"path": str(folder / "rows.jsonl")},
            "rollout": {"prompts_per_batch": 1, "shards": 1},
            "reward": {"weights": {"format": 0.5, "code_tests": 0.5}} | reward,
        }
    )


def findings(config: Config) -> dict[str, Finding]:
    return {f.what: f for f in task(Target(config))}


def test_a_right_and_a_wrong_program_are_run_before_a_gpu_is_spent(folder: Path) -> None:
    found = findings(config(folder, {**PLUS, "solution": SOLUTION}))
    assert found["prompt"].says.startswith("row 0, 1 test, ")
    assert "the program, as a code block, in <answer> </answer> tags" in found["prompt"].says
    right = found["right answer"]
    assert right.says.startswith("format 1, code_tests 1: reward 1, a success\n")
    assert "<think>…</think><answer>```python\n      | print(int(input()) + 1)" in right.says
    assert found["wrong answer"].says.startswith("format 1, code_tests 0: reward 0.5, no success")
    assert {f.level for f in found.values()} == {"ok"}
    assert found["solutions"].says == "1 of the first 1 solution pass their tests"


def test_without_tags_the_program_stands_alone(folder: Path) -> None:
    found = findings(
        config(folder, {**PLUS, "solution": SOLUTION}, weights={"code_tests": 1}, answer="final")
    )
    assert "in a code block that starts with ```python" in found["prompt"].says
    assert "\n      | ```python\n      | print(int(input()) + 1)\n      | ```" in found["right answer"].says


def test_rows_whose_own_program_does_not_pass_are_named_with_the_libraries_it_lacks(folder: Path) -> None:
    right, wrong = {**PLUS, "solution": SOLUTION}, {**PLUS, "solution": "print(7)"}
    wanting = {**PLUS, "solution": "import math, numpy.linalg\nfrom pandas import NA\n" + SOLUTION}
    found = list(task(Target(config(folder, right, PLUS, wrong, wanting))))
    solutions = [f for f in found if f.what == "solutions"]
    assert [f.says[:5] for f in solutions] == ["row 2", "row 3", "1 of "]
    assert {f.level for f in solutions} == {"warn"}
    says = solutions[1].says
    assert says.endswith("(it imports numpy, pandas: programs have Python's standard library alone)")


def test_tests_that_cannot_be_run_stop_before_the_run_does(folder: Path) -> None:
    row = {"problem": "f", "tests": ["assert f(len) == 1"], "solution": "def f(x): return 1"}
    fine = {"problem": "g", "tests": ["assert g(1) == 1"], "solution": "def g(x): return x"}
    with pytest.raises(ConfigError, match=r"\(row 1, problem 'f'\)"):
        findings(config(folder, fine, row))


def test_tests_without_a_program_are_said_not_to_be_tried(folder: Path) -> None:
    found = findings(config(folder, PLUS))
    assert found["right answer"].level == "warn"
    assert "reward.code_tests.solution_field" in found["right answer"].fix
    assert "code_tests 0" in found["wrong answer"].says


def test_rows_without_tests_are_left_out_by_name(folder: Path) -> None:
    rows = PLUS, {"problem": "none"}, {**PLUS, "tests": [{"in": 1}]}
    says = [f.says for f in data(Target(config(folder, *rows))) if f.level == "warn"]
    path = folder / "rows.jsonl"
    assert says[0] == f"left out: {path}:2: no column 'tests' (reward.code_tests.tests_field)"
    assert says[1].startswith(f"left out: {path}:3: 'tests' {{'in': 1}} is no test")
    with pytest.raises(ConfigError, match=r"no column 'tests'"):
        list(data(Target(config(folder, {"problem": "none"}))))


def test_the_layers_of_this_machine_are_said_where_programs_are_run_and_too_few_fail_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def checked(*without: str) -> Finding:
        monkeypatch.setattr(checked_task, "Sandbox", lambda: Sandbox(without=without))
        [found] = examine(Target(config(folder, PLUS)), [sandbox])
        return found

    assert sandbox in CHECKS
    assert not list(sandbox(Target(config(folder, PLUS, weights={"format": 1.0}, success="format"))))
    assert (checked().level, "seccomp" in checked().says) == ("ok", True)
    assert "without namespaces: switched off; without uid: switched off" in checked("namespaces", "uid").says
    failed = checked("seccomp")
    assert (failed.level, "seccomp does not hold" in failed.line) == ("fail", True)
