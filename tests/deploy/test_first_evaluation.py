"""The initial policy is measured while the learner starts and makes its first step; its weights wait."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from hora_rl.common.config import Config
from hora_rl.common.errors import RunError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.load import load
from hora_rl.deploy.launch import first_evaluation
from hora_rl.deploy.launch.evaluation import TrainingRun
from hora_rl.deploy.launch.first_evaluation import Up, evaluating_first
from hora_rl.evaluation.benchmarks import held_out
from hora_rl.learner.feed import wait_while_held

Evaluate = Callable[..., None]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load("tiny", ["run.name=held", f"run.folder={tmp_path}"])


During = Callable[..., None]


@pytest.fixture
def during(config: Config, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> During:
    """`do` in the place of the learner, while `evaluate` runs in the thread of the display. `up` waits for
    the replicas."""

    def run(
        evaluate: Evaluate, do: Callable[[], None], up: Up = lambda _: True, config: Config = config
    ) -> None:
        monkeypatch.setattr(first_evaluation, "evaluate_run", evaluate)
        training = TrainingRun(config, redis_url, tmp_path, Console())
        with evaluating_first(training, up) as first, closing(first):
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

    told: list[str] = []
    heart: Any = SimpleNamespace(update=lambda **state: told.append(state["waiting_for"]))

    def learn() -> None:
        wait_while_held(connect(redis_url), "held", heart)
        assert over
        assert time.monotonic() - over[0] < 2.0

    during(evaluate, learn)
    assert set(told) == {"the evaluation of the initial policy"}
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


def test_an_evaluation_that_fails_ends_the_run_with_its_reason(during: During, redis_url: str) -> None:
    def evaluate(*_: Any) -> None:
        raise RunError("no verifier answers")

    with pytest.raises(RunError, match="no verifier answers"):
        during(evaluate, lambda: time.sleep(20.0))
    assert connect(redis_url).exists(Keys("held").hold), "a learner that still lives publishes nothing"


def test_replicas_load_beside_the_learner_and_are_waited_for_before_the_evaluation(during: During) -> None:
    loaded, evaluated = threading.Event(), threading.Event()

    def learn() -> None:
        assert not evaluated.wait(0.3)
        loaded.set()
        assert evaluated.wait(5.0)

    during(lambda *_: evaluated.set(), learn, lambda _: loaded.wait(10.0))


def no_start(_: threading.Event) -> bool:
    raise RunError("a replica of generator does not start")


def refuse() -> None:
    raise RunError("the learner refused")


@pytest.mark.parametrize(
    ("up", "learn", "reason"),
    [
        (no_start, lambda: time.sleep(20.0), "generator does not start"),
        (lambda stopped: not stopped.wait(30.0), refuse, "the learner refused"),
    ],
)
def test_a_run_that_ends_before_its_replicas_are_up_ends_at_once_with_its_reason(
    during: During, redis_url: str, up: Up, learn: Callable[[], None], reason: str
) -> None:
    evaluated: list[object] = []

    def evaluate(*_: Any) -> None:
        evaluated.append(1)

    with pytest.raises(RunError, match=reason):
        during(evaluate, learn, up)
    assert not evaluated
    assert connect(redis_url).exists(Keys("held").hold), "a resumed run completes it"
