"""Exact curves from a run's checkpoints; that they agree with the loop's is in
research/tests/test_loop_and_stack.py."""

from pathlib import Path

import pytest

from hora_rl.common.config import Config
from hora_rl.common.errors import ConfigError, RunError
from hora_rl.common.load import ROOT, load
from research.study.cells import has_exact_success, load_base
from research.study.command import study
from research.study.curve_sources import check_kept, write_stack_curves
from research.tasks.catalogue import TASKS


@pytest.fixture
def task(tmp_path: Path) -> Path:
    folder = tmp_path / "facts"
    folder.mkdir()
    (folder / "model").symlink_to(ROOT / "deploy" / "demo" / "model")
    TASKS["facts"](0)[0].save(folder)
    return folder


def config_of(task: Path, **more: object) -> Config:
    settings = {
        "model.path": task / "model",
        "data.path": task / "trained.jsonl",
        "evaluation.path": "null",
        "run.folder": task,
        "run.name": "one",
        "learner.steps": 60,
        **more,
    }
    return load_base("facts", [f"{key}={value}" for key, value in settings.items()])


def test_success_is_exact_for_a_recall_task_that_nothing_else_evaluates(task: Path) -> None:
    assert has_exact_success(config_of(task))
    assert not has_exact_success(config_of(task, **{"evaluation.path": task / "transfer.jsonl"}))
    assert not has_exact_success(load("tiny", ["evaluation.path=null"]))


def test_a_curve_with_a_hole_is_refused_before_and_after_the_run(task: Path) -> None:
    config = config_of(task, **{"learner.checkpoint_every": 5})
    with pytest.raises(ConfigError, match=r"learner.keep_checkpoints \(2\) drops .* set it to 12"):
        check_kept(config)
    check_kept(config_of(task, **{"learner.checkpoint_every": 5, "learner.keep_checkpoints": 12}))
    for step in (55, 60):
        (config.run.path / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    with pytest.raises(RunError, match="no checkpoint of step 5; there are: 55, 60"):
        write_stack_curves(config)


def test_a_study_without_held_out_problems_is_refused_where_success_is_not_exact(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nseeds: [0]\nset: {evaluation.path: null}\narms: {a: {}}\n")
    with pytest.raises(ConfigError, match=r"evaluation.path is not set"):
        study(str(file), tmp_path / "out", None)
