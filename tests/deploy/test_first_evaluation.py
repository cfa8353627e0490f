"""The initial policy is measured while the learner starts and makes its first step; its weights wait. The
weights of the best evaluation are kept."""

import asyncio
import json
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from rich.console import Console

from hora_rl.common.config import Config
from hora_rl.common.errors import RunError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.load import load
from hora_rl.common.types import Prompt
from hora_rl.deploy.launch import first_evaluation
from hora_rl.deploy.launch.best import promote_best, read_best
from hora_rl.deploy.launch.evaluation import TrainingRun
from hora_rl.deploy.launch.first_evaluation import Up, evaluating_first
from hora_rl.evaluation.benchmarks import held_out
from hora_rl.evaluation.evaluate import Counts
from hora_rl.evaluation.results import Result, make_result
from hora_rl.learner.checkpoints.origin import (
    best_step,
    candidate,
    candidates_in,
    is_candidate,
    is_missing,
    write_origin,
)
from hora_rl.learner.feed.reader import wait_while_held

During = Do = Callable[..., None]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load("tiny", ["run.name=held", f"run.folder={tmp_path}"])


@pytest.fixture
def stopped() -> threading.Event:
    return threading.Event()


@pytest.fixture
def learner(stopped: threading.Event) -> Callable[[], None]:
    """Trains until it is stopped, which it reports."""

    def learn() -> None:
        assert stopped.wait(20.0)
        raise RunError("the learner was stopped")

    return learn


@pytest.fixture
def during(
    config: Config, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: threading.Event
) -> During:
    """`do` in the place of the learner, while `evaluate` runs in the thread of the display. `up` waits for
    the replicas. `stopped` is what ends a learner."""

    def run(evaluate: Do, do: Do, up: Up = lambda _: True, config: Config = config) -> None:
        monkeypatch.setattr(first_evaluation, "evaluate_run", evaluate)
        training = TrainingRun(config, redis_url, tmp_path, Console())
        with evaluating_first(training, up, stopped.set) as first, closing(first):
            thread = threading.Thread(target=first.run)
            thread.start()
            do()
        thread.join(5.0)
        assert not thread.is_alive()

    return run


def test_the_learner_goes_on_when_the_evaluation_is_over(during: During, redis_url: str) -> None:
    over: list[float] = []

    def evaluate(*_: Any) -> None:
        time.sleep(0.6)
        over.append(time.monotonic())

    def learn() -> None:
        wait_while_held(connect(redis_url), "held", Mock())
        assert over
        assert time.monotonic() - over[0] < 2.0

    during(evaluate, learn)
    assert connect(redis_url).exists(Keys("held").hold) == 0


def test_a_run_without_held_out_problems_or_with_a_result_holds_nothing(
    during: During, config: Config, redis_url: str, tmp_path: Path
) -> None:
    def look() -> None:
        assert connect(redis_url).exists(Keys("held").hold) == 0

    without = config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"path": None})})
    during(lambda *_: None, look, config=without)
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / f"{held_out(config.evaluation).name}-step0.json").touch()
    connect(redis_url).set(Keys("held").hold, 1, ex=60)  # the launcher was killed when it had the result
    during(lambda *_: None, look)


def test_the_end_of_a_run_breaks_the_evaluation_off(during: During, redis_url: str) -> None:
    began = time.monotonic()

    def evaluate(*given: Any) -> None:
        given[-1](asyncio.sleep(60.0))

    def interrupted() -> None:
        time.sleep(0.3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        during(evaluate, interrupted)
    assert time.monotonic() - began < 10.0
    left_s = connect(redis_url).ttl(Keys("held").hold)
    assert 0 < left_s <= first_evaluation.HOLD_S, "a resumed run completes it"


def test_replicas_load_beside_the_learner_and_are_waited_for_before_the_evaluation(during: During) -> None:
    loaded, evaluated = threading.Event(), threading.Event()

    def learn() -> None:
        assert not evaluated.wait(0.3)
        loaded.set()
        assert evaluated.wait(5.0)

    during(lambda *_: evaluated.set(), learn, lambda _: loaded.wait(10.0))


@pytest.mark.parametrize("part", ["evaluation", "replicas"])
def test_an_evaluation_or_replica_that_fails_ends_the_run_with_its_reason(
    during: During, redis_url: str, learner: Do, part: str
) -> None:
    evaluate, failing = Mock(), Mock(side_effect=RunError("no verifier answers"))
    with pytest.raises(RunError, match="no verifier answers"):
        during(*((failing, learner) if part == "evaluation" else (evaluate, learner, failing)))
    assert not evaluate.called
    assert connect(redis_url).exists(Keys("held").hold), "nothing is published, a resumed run completes it"


def test_a_learner_that_fails_before_the_replicas_are_up_ends_the_run_at_once(during: During) -> None:
    evaluate = Mock()
    with pytest.raises(RunError, match="refused"):
        during(evaluate, Mock(side_effect=RunError("refused")), lambda stopped: not stopped.wait(30.0))
    assert not evaluate.called


KEPT = load("tiny", ["evaluation.every=10", "learner.keep_best=pass@16", "learner.steps=45"])


def result(step: int, right: int) -> Result:
    rest, versions = np.zeros((3, 2), np.int64), (step, step + 1)
    counts = Counts(64, np.arange(2), np.array([right, 0]), *rest, versions=versions)
    problems = [Prompt(i, str(i), "1", np.zeros(1, np.int32)) for i in range(2)]
    made = make_result(held_out(KEPT.evaluation), counts, problems, "run", step, 1.0, 0)
    made.versions.extend(counts.versions)
    return made


def write(run_dir: Path, step: int) -> None:
    """What the learner exports."""
    folder = candidate(run_dir, step)
    folder.mkdir(parents=True)
    write_origin(folder, "run", step)


def test_the_best_evaluation_s_weights_are_kept_and_the_others_go(tmp_path: Path) -> None:
    for step in (0, 10, 20, 30):
        write(tmp_path, step)
    results = [result(0, 1), result(10, 9), result(20, 4)]
    assert "step 10" in str(promote_best("pass@16", tmp_path, results, newest_due=30))
    assert best_step(tmp_path) == 10
    assert set(candidates_in(tmp_path)) == {30}  # not measured yet
    found = read_best(tmp_path)
    assert found is not None
    assert (found["metric"], found["step"], found["versions"]) == ("pass@16", 10, [10, 11])
    assert promote_best("pass@16", tmp_path, results, newest_due=30) is None
    assert promote_best("pass@16", tmp_path, [*results, result(30, 9)], newest_due=30) is None
    assert best_step(tmp_path) == 10  # of equal ones the first
    assert candidates_in(tmp_path) == {}


def test_what_is_under_way_or_due_is_kept_and_taken_when_it_comes(tmp_path: Path) -> None:
    results = [result(0, 3)]
    assert promote_best("pass@16", tmp_path, results, newest_due=0) is None
    for step in (0, 10, 20, 30, 40):
        write(tmp_path, step)
    assert promote_best("pass@16", tmp_path, results, newest_due=40, under_way=10)
    assert best_step(tmp_path) == 0
    assert set(candidates_in(tmp_path)) == {10, 40}


@pytest.mark.parametrize("cut", ["before the rename", "between the two renames", "after them"])
def test_a_kill_while_the_best_is_replaced_leaves_it_to_the_next_start(tmp_path: Path, cut: str) -> None:
    write(tmp_path, 0)
    promote_best("pass@16", tmp_path, [result(0, 3)], newest_due=0)
    write(tmp_path, 10)
    if cut == "between the two renames":
        (tmp_path / "best").rename(tmp_path / "best.old")
    if cut == "after them":
        shutil.copytree(tmp_path / "best", tmp_path / "best.old")
        promote_best("pass@16", tmp_path, [result(0, 3)], newest_due=10)
        assert not (tmp_path / "best.old").exists()
    promote_best("pass@16", tmp_path, [result(0, 3), result(10, 5)], newest_due=10)
    assert best_step(tmp_path) == 10
    assert json.loads((tmp_path / "best" / "best.json").read_text())["step"] == 10
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["best", "candidates"]


def test_a_kill_while_a_candidate_is_removed_leaves_no_half_of_it_to_be_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (0, 10):
        write(tmp_path, step)

    def killed(folder: Path, ignore_errors: bool = False) -> None:
        if folder.exists():
            next(folder.iterdir()).unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as cut:
        cut.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            promote_best("pass@16", tmp_path, [result(0, 5), result(10, 3)], newest_due=10)
    assert candidates_in(tmp_path) == {}
    write(tmp_path, 10)  # the learner repeats the step
    promote_best("pass@16", tmp_path, [result(0, 5), result(10, 3)], newest_due=10)
    assert [p.name for p in (tmp_path / "candidates").iterdir()] == []


def test_the_learner_writes_each_evaluated_step_once(tmp_path: Path) -> None:
    assert [s for s in range(46) if is_candidate(KEPT.learner, 10, s)] == [0, 10, 20, 30, 40, 45]
    assert not is_candidate(load("tiny").learner, 10, 10)
    assert is_missing(tmp_path, 10)
    write(tmp_path, 10)
    assert not is_missing(tmp_path, 10)
    promote_best("pass@16", tmp_path, [result(10, 5)], newest_due=10)
    assert not is_missing(tmp_path, 10)
    assert is_missing(tmp_path, 20)
