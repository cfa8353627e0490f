"""What a one-machine run tells at its end, where HORA never came into force or no format was rewarded."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from common.config import Config
from deploy.launch.summary import summarise
from deploy.monitor.pace import Pace
from evaluation.results import Result, markdown_table, write_result


def config(**reward: object) -> Config:
    paths = {"model": {"path": "m"}, "data": {"path": "arithmetic"}, "evaluation": {"path": "arithmetic"}}
    return Config.model_validate(paths | {"reward": reward})


def told(config: Config, folder: Path) -> str:
    console = Console(width=300, record=True, file=io.StringIO())
    summarise(config, folder, Pace(), console)
    return console.export_text()


@pytest.mark.parametrize(
    ("rules", "said"), [(("uniform", "uniform"), True), (("uniform", "hit_utility"), False)]
)
def test_a_run_whose_gate_never_opened_says_so_with_the_figures(
    tmp_path: Path, rules: tuple[str, str], said: bool
) -> None:
    rows = [
        {
            "batch": b,
            "rule": rule,
            "successes": 0,
            "extra": 4,
            "size": 8,
            "tokens": 9,
            "rewards": {"format": 0.2 + b / 10},
        }
        for b, rule in enumerate(rules)
    ]
    (tmp_path / "groups.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = told(config(), tmp_path)
    line = (
        "the warm-up gate never opened, so every batch was allocated uniformly (plain GRPO): the mean format "
        "reward of the last batch was 0.30, and 3 batches in a row need 0.85"
    )
    assert (line in text) == said
    assert "never opened" not in told(config(weights={"accuracy": 1.0}), tmp_path)


def test_a_format_that_nobody_rewards_is_not_reported_as_missed(tmp_path: Path) -> None:
    result = Result(
        benchmark="arithmetic", title="Arithmetic", model="m", step=0, temperature=1.0, seed=0, samples=2,
        ks=[1], problems=[0, 1], correct=[1, 0], formatted=3, cut=0, tokens=40, problem_set="x",
    )  # fmt: skip
    for formatted, shown in ((3, "75.0%"), (None, "│ format")):
        for step in (0, 2):
            write_result(tmp_path / "evaluation", replace(result, step=step, formatted=formatted))
        text = told(config(), tmp_path)
        assert (shown in text) == (formatted is not None)
        table = markdown_table(replace(result, formatted=formatted), result.estimates())
        assert ("75.0% in the format" in table) == (formatted is not None)
