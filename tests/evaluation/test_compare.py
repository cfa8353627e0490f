"""`hora report --compare`: curves of several runs over each other, from their folders."""

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from rich.console import Console

from hora_rl.common.errors import ConfigError
from hora_rl.evaluation.report.compare import Comparison, compare, show, write
from hora_rl.evaluation.report.terminal_curves import chart
from hora_rl.evaluation.run_folders import RunFolderError


def folder(root: Path, name: str, rule: str, rollouts: int, values: list[float]) -> Path:
    """A run folder whose success is `values`, one a step of so many rollouts and 1800 s."""
    path = root / name
    path.mkdir()
    config = {"run": {"name": name}, "allocation": {"rule": rule}, "learner": {"steps": 4}}
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    steps = [
        {"step": i, "success": value, "rollouts": rollouts, "time/step": 1800.0}
        for i, value in enumerate(values)
    ]
    (path / "steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    return path


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [
        folder(tmp_path, "hora", "hit_utility", 10, [0.1, 0.3, 0.5, 0.7]),
        folder(tmp_path, "grpo", "uniform", 20, [0.1, 0.2]),
    ]


def shown(found: Comparison, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    show(found, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= width
    return str(text)


def test_curves_stand_over_what_was_spent(runs: list[Path]) -> None:
    def places(over: str) -> dict[str, list[float]]:
        return {name: x.tolist() for name, (x, _, _) in compare(runs, [], over).curves["success"].items()}

    assert places("step") == {"hora": [0, 1, 2, 3], "grpo": [0, 1]}
    assert places("rollouts") == {"hora": [10, 20, 30, 40], "grpo": [20, 40]}
    assert places("hours") == {"hora": [0.5, 1.0, 1.5, 2.0], "grpo": [0.5, 1.0]}


def test_the_terminal_shows_runs_differences_and_curves(runs: list[Path]) -> None:
    found = compare(runs, [], "rollouts")
    assert found.settings == [("allocation.rule", ["hit_utility", "uniform"])]
    text = shown(found)
    for words in ("━ hora", "━ grpo", "0.700", "allocation.rule", "success over rollouts", "40"):
        assert words in text, words


def test_the_page_is_one_file_with_the_curves_and_the_settings(runs: list[Path], tmp_path: Path) -> None:
    html = write(compare(runs, [], "step"), tmp_path / "new" / "page.html").read_text()
    assert html.count("<svg") == 1
    assert "prefers-color-scheme: dark" in html
    assert re.search(r"<td>allocation.rule</td><td>hit_utility</td><td>uniform</td>", html)
    assert not re.search(r'(src|href)="(?!#)', html)


def test_what_cannot_be_compared_is_refused_by_name(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--metric nonsense: no run has it; they have .*success"):
        compare(runs, ["nonsense"], "step")
    with pytest.raises(ConfigError, match="--over epochs: none of step, rollouts"):
        compare(runs, [], "epochs")
    with pytest.raises(RunFolderError, match=r"hora: its steps\.jsonl has no 'tokens'"):
        compare(runs, [], "tokens")
    (tmp_path / "young").mkdir()
    (tmp_path / "young" / "steps.jsonl").touch()
    with pytest.raises(RunFolderError, match="young"):
        compare([*runs, tmp_path / "young"], [], "step")


def test_a_figure_that_is_infinite_once_is_left_out_of_its_curve() -> None:
    steps = np.arange(20.0)
    values = np.where(steps == 7, np.inf, steps)
    assert "grad_norm" in chart("grad_norm", {"a": (steps, values)}, 60).plain
