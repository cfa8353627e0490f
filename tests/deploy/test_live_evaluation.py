"""Evaluations during training, with stand-ins for the generators: everything else of them is real."""

import asyncio
import io
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from hora_rl.common.config import Config
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.load import load
from hora_rl.common.types import BELOW_TRAINING, Completion, Prompt, SamplingRequest, Scored
from hora_rl.common.weights.announcement import advance
from hora_rl.deploy.launch.evaluation import TrainingRun
from hora_rl.deploy.launch.live_evaluation import LiveEvaluation
from hora_rl.deploy.monitor.reading import read_run
from hora_rl.deploy.monitor.run_state import Kind
from hora_rl.evaluation.results import Result, read_result
from hora_rl.learner.checkpoints.origin import best_step, candidate, write_origin
from tests.support.groups import completion
from tests.support.ports import until

PROBLEMS, SAMPLES = 4, 8

pytestmark = pytest.mark.system  # importing what draws and records takes seconds


class Live:
    """One run's evaluator in a thread, its console, and generators that answer with the newest version."""

    def __init__(self, url: str, folder: Path, name: str, *more: str) -> None:
        settings = {"run.name": name, "learner.steps": 20, "evaluation.every": 2, "evaluation.k": "[1, 8]"}
        settings |= {"evaluation.prompts": PROBLEMS, "evaluation.samples": SAMPLES}
        settings |= {"evaluation.max_sequences": 4}
        self.config: Config = load("tiny", [*(f"{k}={v}" for k, v in settings.items()), *more])
        self.redis, self.url, self.run_dir = connect(url), url, folder
        self.redis.set(Keys(name).config, self.config.model_dump_json())
        self.requests: list[tuple[SamplingRequest, int]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.at_a_time = self.most = 0
        self.said = io.StringIO()

    def start(self) -> None:
        console = Console(file=self.said, width=1000)
        run = TrainingRun(self.config, self.url, self.run_dir, console)
        self.live = LiveEvaluation(run, self._calls)
        self.thread = threading.Thread(target=self.live.run, daemon=True)
        self.thread.start()

    def evaluate_slowly(self, version: int) -> None:
        """Until the evaluation of `version` has asked for samples, which wait for `may_answer`."""
        self.version(version)
        self.may_answer.clear()
        self.start()
        until(lambda: self.requests, self.said.getvalue)

    def stop(self) -> None:
        self.live.close()
        self.thread.join(20)
        assert not self.thread.is_alive()

    def version(self, version: int) -> None:
        advance(self.redis, self.config.run.name, version)

    def weights(self, step: int) -> Path:
        """The candidate that the learner exports."""
        folder = candidate(self.run_dir, step)
        folder.mkdir(parents=True)
        write_origin(folder, "run", step)
        return folder

    def result(self, step: int) -> Result:
        path = self.run_dir / "evaluation" / f"arithmetic-step{step}.json"
        until(path.exists, self.said.getvalue)
        return read_result(path)

    def _calls(self, config: Config, version: int):
        async def generate(request: SamplingRequest) -> list[Completion]:
            self.requests.append((request, version))
            self.at_a_time += request.n
            self.most = max(self.most, self.at_a_time)
            while not self.may_answer.is_set():
                await asyncio.sleep(0.005)
            self.at_a_time -= request.n
            newest = read_run(self.redis, config.run.name).version
            texts = (str(request.seed + j) for j in range(request.n))
            return [completion(range(3), text, version=newest) for text in texts]

        async def score(prompt: Prompt, completions: Sequence[Completion]) -> list[Scored]:
            right = [int(c.text) % 2 == 0 for c in completions]
            return [Scored({"format": 1.0, "accuracy": float(r)}, r) for r in right]

        return generate, score


@pytest.fixture
def live(redis_url: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hora_rl.deploy.launch.live_evaluation.POLL_S", 0.05)
    made: list[Live] = []

    def make(*more: str) -> Live:
        made.append(Live(redis_url, tmp_path, f"live{abs(hash(request.node.name))}", *more))
        return made[-1]

    yield make
    for each in made:
        if hasattr(each, "live"):
            each.stop()


def test_an_evaluation_waits_behind_training_and_names_the_weights_it_met(live) -> None:
    run = live()
    run.evaluate_slowly(2)
    run.version(3)
    run.may_answer.set()
    found = run.result(2)
    assert (found.step, found.versions, found.sampled) == (2, [3, 3], "v3")
    assert len(found.correct) == PROBLEMS
    assert {(r.priority, version) for r, version in run.requests} == {(BELOW_TRAINING, 2)}
    assert run.most <= run.config.evaluation.max_sequences
    until(lambda: 2 in read_run(run.redis, run.config.run.name).evaluations)
    shown = read_run(run.redis, run.config.run.name).evaluations[2]
    assert (shown["version/min"], shown["version/max"]) == (3, 3)
    assert shown["pass@1"] == pytest.approx(found.estimates()[0].value)
    until(lambda: list(run.run_dir.glob("tensorboard/evaluation/*")))
    assert "no evaluation of step 0" in run.said.getvalue()


def test_an_evaluation_that_takes_too_long_is_finished_and_said_once_on_every_view(live) -> None:
    run = live()
    run.evaluate_slowly(2)
    run.version(7)
    name = run.config.run.name
    until(lambda: read_run(run.redis, name).warns(Kind.EVALUATION_LATE), run.said.getvalue)
    run.may_answer.set()
    assert run.result(2).samples == run.result(6).samples == SAMPLES
    said = run.said.getvalue()
    assert said.count("the evaluation of step 2 takes longer than evaluation.every (2 steps)") == 1
    assert said.count("no evaluation of step 4") == 1
    until(lambda: not read_run(run.redis, name).warns(Kind.EVALUATION_LATE))


def test_an_evaluation_that_begins_beside_the_last_step_may_be_the_best(live) -> None:
    run = live("learner.keep_best=pass@1", "learner.steps=6")
    run.evaluate_slowly(2)
    run.weights(4)
    run.version(6)
    run.may_answer.set()
    run.result(4)
    until(lambda: best_step(run.run_dir) == 4, run.said.getvalue)


def test_samples_of_weights_that_are_no_more_are_set_aside(live) -> None:
    run = live()
    run.version(3)
    run.start()
    run.result(2)
    run.stop()
    folder, state = run.run_dir / "evaluation", Keys(run.config.run.name).state
    (folder / "arithmetic-step2.json").unlink()
    run.redis.hset(state, "version", 2)  # as after a lost Redis: the learner goes on from a checkpoint
    run.requests.clear()
    run.start()
    assert run.result(2).versions == [2, 2]
    assert len(run.requests) == PROBLEMS * SAMPLES // 4
    assert (folder / "arithmetic-step2.samples.jsonl.older").exists()
    assert "step 2 is sampled again" in run.said.getvalue()


def test_an_evaluation_that_fails_is_one_line_and_the_next_one_is_tried(live) -> None:
    run = live()
    folder = run.run_dir / "evaluation"
    folder.mkdir()
    (folder / "arithmetic-step2.samples.jsonl").write_text('{"about": {}, "problems": "others"}\n')
    run.version(2)
    run.start()
    until(lambda: "step 2 is not evaluated" in run.said.getvalue(), run.said.getvalue)
    run.version(4)
    assert run.result(4).step == 4


def test_an_evaluator_with_an_error_keeps_the_weights_that_a_resume_measures(live) -> None:
    run = live("learner.keep_best=pass@1")
    blocked = run.run_dir / "evaluation" / "arithmetic-step2.md"
    blocked.mkdir(parents=True)  # as a full disk: the result cannot be written
    run.weights(2)
    run.version(2)
    run.start()
    until(lambda: "evaluation during training has ended" in run.said.getvalue(), run.said.getvalue)
    passed_over = run.weights(4)
    run.weights(6)
    until(lambda: not passed_over.exists())
    run.stop()
    blocked.rmdir()
    run.version(6)
    run.start()
    run.result(2)
    until(lambda: best_step(run.run_dir) == 2, run.said.getvalue)


def test_the_end_of_training_breaks_an_evaluation_off_and_keeps_samples(live) -> None:
    run = live()
    run.evaluate_slowly(2)
    run.stop()
    assert "the evaluation of step 2 ends with training" in run.said.getvalue()
    assert (run.run_dir / "evaluation" / "arithmetic-step2.samples.jsonl").exists()
    assert not run.redis.hexists(Keys(run.config.run.name).parts, "evaluator/live")
