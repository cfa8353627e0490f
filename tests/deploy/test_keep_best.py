import json
from pathlib import Path

import numpy as np
import pytest

from hora_rl.common.config import Config
from hora_rl.common.load import load
from hora_rl.common.types import Prompt
from hora_rl.deploy.launch.best import promote_best, read_best
from hora_rl.evaluation.benchmarks import held_out
from hora_rl.evaluation.evaluate import Counts
from hora_rl.evaluation.results import Result, make_result
from hora_rl.learner.origin import (
    best_step,
    candidate,
    candidates_in,
    is_candidate,
    is_missing,
    write_origin,
)


@pytest.fixture
def config() -> Config:
    return load("tiny", ["evaluation.every=10", "learner.keep_best=pass@16", "learner.steps=45"])


def result(config: Config, step: int, right: int) -> Result:
    counts = Counts(
        64, np.arange(2), np.array([right, 0]), *np.zeros((3, 2), np.int64), versions=(step, step + 1)
    )
    problems = [Prompt(i, str(i), "1", np.zeros(1, np.int32)) for i in range(2)]
    made = make_result(held_out(config.evaluation), counts, problems, "run", step, 1.0, 0)
    made.versions.extend(counts.versions)
    return made


def write(run_dir: Path, step: int) -> None:
    """What the learner exports."""
    folder = candidate(run_dir, step)
    folder.mkdir(parents=True)
    write_origin(folder, "run", step)


def test_the_best_evaluation_s_weights_are_kept_and_the_others_go(config: Config, tmp_path: Path) -> None:
    for step in (0, 10, 20, 30):
        write(tmp_path, step)
    results = [result(config, 0, 1), result(config, 10, 9), result(config, 20, 4)]
    assert "step 10" in str(promote_best("pass@16", tmp_path, results, newest_due=30))
    assert best_step(tmp_path) == 10
    assert set(candidates_in(tmp_path)) == {30}  # not measured yet
    found = read_best(tmp_path)
    assert found is not None
    assert (found["metric"], found["step"], found["versions"]) == ("pass@16", 10, [10, 11])
    assert promote_best("pass@16", tmp_path, results, newest_due=30) is None
    assert promote_best("pass@16", tmp_path, [*results, result(config, 30, 9)], newest_due=30) is None
    assert best_step(tmp_path) == 10  # of equal ones the first
    assert candidates_in(tmp_path) == {}


def test_what_is_under_way_and_due_next_is_kept_and_what_no_evaluation_will_measure_is_not(
    config: Config, tmp_path: Path
) -> None:
    for step in (10, 20, 30, 40):
        write(tmp_path, step)
    promote_best("pass@16", tmp_path, [], newest_due=40, under_way=10)
    assert set(candidates_in(tmp_path)) == {10, 40}


def test_weights_that_come_after_their_evaluation_are_taken_when_they_come(
    config: Config, tmp_path: Path
) -> None:
    results = [result(config, 0, 3)]
    assert promote_best("pass@16", tmp_path, results, newest_due=0) is None
    write(tmp_path, 0)
    assert promote_best("pass@16", tmp_path, results, newest_due=0)
    assert best_step(tmp_path) == 0


@pytest.mark.parametrize("cut", ["before the rename", "between the two renames"])
def test_a_kill_while_the_best_is_replaced_leaves_it_to_the_next_start(
    config: Config, tmp_path: Path, cut: str
) -> None:
    write(tmp_path, 0)
    promote_best("pass@16", tmp_path, [result(config, 0, 3)], newest_due=0)
    write(tmp_path, 10)
    if cut == "between the two renames":
        (tmp_path / "best").rename(tmp_path / "best.old")
    promote_best("pass@16", tmp_path, [result(config, 0, 3), result(config, 10, 5)], newest_due=10)
    assert best_step(tmp_path) == 10
    assert json.loads((tmp_path / "best" / "best.json").read_text())["step"] == 10
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["best", "candidates"]


def test_the_learner_writes_each_evaluated_step_once(config: Config, tmp_path: Path) -> None:
    assert [s for s in range(46) if is_candidate(config.learner, 10, s)] == [0, 10, 20, 30, 40, 45]
    assert not is_candidate(load("tiny").learner, 10, 10)
    assert is_missing(tmp_path, 10)
    write(tmp_path, 10)
    assert not is_missing(tmp_path, 10)
    promote_best("pass@16", tmp_path, [result(config, 10, 5)], newest_due=10)
    assert not is_missing(tmp_path, 10)
    assert is_missing(tmp_path, 20)
