"""What a one-machine run tells at its end, where HORA never came into force or no format was rewarded."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hora_rl.common.config import Config
from hora_rl.common.data.datasets import load_held_out
from hora_rl.deploy.launch.evaluation import TrainingRun
from hora_rl.deploy.launch.summary import summarise
from hora_rl.deploy.monitor.progress import Pace
from hora_rl.evaluation.report.result_files import markdown_table, write_result
from hora_rl.evaluation.results import Result

RESULT = Result(
    benchmark="arithmetic", title="Arithmetic", model="m", step=0, temperature=1.0, seed=0, samples=2,
    ks=[1], problems=[0, 1], correct=[1, 0], formatted=None, cut=0, tokens=40, problem_set="x",
)  # fmt: skip


def config(**reward: object) -> Config:
    paths = {"model": {"path": "m"}, "data": {"path": "arithmetic"}, "evaluation": {"path": "arithmetic"}}
    return Config.model_validate(paths | {"reward": reward})


def told(config: Config, folder: Path) -> str:
    console = Console(width=300, record=True, file=io.StringIO())
    summarise(TrainingRun(config, "", folder, console), Pace())
    return console.export_text()


@pytest.mark.parametrize(("rules", "said"), [(["uniform"] * 2, True), (["uniform", "hit_utility"], False)])
def test_a_run_whose_gate_never_opened_says_so_with_the_figures(
    tmp_path: Path, rules: list[str], said: bool
) -> None:
    usual = {"successes": 0, "extra": 4, "size": 8, "tokens": 9}
    rows = [
        {**usual, "batch": b, "rule": r, "rewards": {"format": 0.2 + b / 10}} for b, r in enumerate(rules)
    ]
    (tmp_path / "groups.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = told(config(), tmp_path)
    assert ("never opened" in text) == ("was 0.30, and 3 batches in a row need 0.85" in text) == said
    assert "never opened" not in told(config(weights={"accuracy": 1.0}), tmp_path)


def test_a_format_that_nobody_rewards_is_not_reported_as_missed(tmp_path: Path) -> None:
    for formatted, shown in ((3, "75.0%"), (None, "│ format")):
        for step in (0, 2):
            write_result(tmp_path / "evaluation", replace(RESULT, step=step, formatted=formatted))
        text = told(config(), tmp_path)
        assert (shown in text) == (formatted is not None)
        table = markdown_table(replace(RESULT, formatted=formatted), RESULT.estimates())
        assert ("75.0% in the format" in table) == (formatted is not None)


def test_a_run_ends_with_problems_and_completions_before_and_after(tmp_path: Path) -> None:
    rows = load_held_out(config().evaluation, config().evaluated.data).rows[:2]
    for step, texts in ((0, ("wrong", "[red]")), (2, ("x" * 300 + "right", rows[1].answer))):
        write_result(tmp_path / "evaluation", replace(RESULT, step=step, correct=[step, 1]))
        lines = [json.dumps({"about": {}, "problems": ""})]
        for number in (1, 0):  # in the order of their completion
            lines += [
                json.dumps({
                    "problem": i, "sample": number, "seed": 0, "text": text if number == 0 else "another",
                    "length": 3, "finish_reason": "stop", "versions": [step, step],
                    "rewards": {"accuracy": 1.0}, "success": step == 2,
                })
                for i, text in enumerate(texts)
            ]  # fmt: skip
        file = tmp_path / "evaluation" / f"arithmetic-step{step}.samples.jsonl"
        file.write_text("\n".join(lines) + "\n")
    text = told(config(), tmp_path)
    found = json.loads((tmp_path / "summary.json").read_text())["examples"]
    assert [(e["problem"], e["answer"]) for e in found] == [(r.problem, r.answer) for r in rows]
    assert [e["before"]["hits"] for e in found] == [0, 1]
    assert found[0]["after"] == {"text": "x" * 300 + "right", "success": True, "hits": 2, "samples": 2}
    assert "[red]" in text
    assert "another" not in text
    assert "x" * 101 not in text
