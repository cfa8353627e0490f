"""What can be wrong with an evaluation is one line before a generator is started."""

import asyncio
import io
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from rich.console import Console

from hora_rl.actors.generator.deployment import Admission
from hora_rl.common.config import Config
from hora_rl.common.errors import ConfigError, RunError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.load import load
from hora_rl.common.model.model_files import weights_digest
from hora_rl.common.types import BELOW_TRAINING, Completion, Prompt, SamplingRequest, VersionSpan
from hora_rl.deploy.checks import memory
from hora_rl.deploy.launch import evaluation, local
from hora_rl.deploy.launch.evaluation import TrainingRun, about_sampling, evaluate_run, in_flight, of_version
from hora_rl.deploy.machine.redis_server import RedisServer
from hora_rl.evaluation.benchmarks import find_benchmark
from hora_rl.evaluation.evaluate import Counts
from hora_rl.learner.checkpoints.origin import write_origin
from tests.support.jsonl import write_lines


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=400)


def benchmark_file(tmp_path: Path, rows: Sequence[dict]) -> str:
    return str(write_lines(tmp_path / "own.jsonl", rows))


ROWS = [{"problem": "1+1=?", "answer": 2}, {"problem": "2+2=?", "answer": 4}]


def refused(tmp_path: Path, rows: Sequence[dict], *settings: str) -> str:
    own = find_benchmark(benchmark_file(tmp_path, rows))
    with pytest.raises(ConfigError) as error:
        evaluation.load_benchmark(load("tiny", settings), own, Console())
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_missing_column_and_a_problem_that_does_not_fit_are_named(tmp_path: Path) -> None:
    missing = refused(tmp_path, [{"task": "1+1=?", "answer": 2}])
    assert all(name in missing for name in ("own.jsonl", "'problem'", "answer, task", "data.prompt_field"))
    long = refused(tmp_path, [*ROWS, {"problem": "1+" * 40 + "1=?", "answer": 41}])
    assert all(name in long for name in ("1 of 3", "rollout.max_prompt_tokens = 32", "84"))


def test_rows_without_a_usable_answer_are_reported(tmp_path: Path, console: Console) -> None:
    rows = [*ROWS, {"problem": "3+3=?", "answer": None}, {"problem": "4+4=?"}]
    benchmark = find_benchmark(benchmark_file(tmp_path, rows))
    assert len(evaluation.load_benchmark(load("tiny"), benchmark, console)) == 2
    assert all(place in console.file.getvalue() for place in ("own.jsonl:3: ", "own.jsonl:4: "))


@pytest.mark.parametrize("step", [None, 60])
def test_results_are_labelled_with_the_steps_behind_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int | None
) -> None:
    model, labels = tmp_path / "model", []
    shutil.copytree(load("tiny").model.path, model)
    if step is not None:
        write_origin(model, "tiny", step)
    monkeypatch.setattr(memory, "free_memory", lambda: 2**40)
    monkeypatch.setattr(local, "stack", lambda *args, **kwargs: nullcontext("no Redis"))
    monkeypatch.setattr(local, "sample", lambda *args, version: labels.append(args[4]) or Mock())
    monkeypatch.setattr(local, "write_result", lambda *_: None)
    monkeypatch.setattr(local, "result_page", lambda *_: "")
    names = [benchmark_file(tmp_path, ROWS)]
    local.evaluate_local(load("tiny", [f"model.path={model}"]), names, 4, (1,), tmp_path / "out")
    assert labels == [step or 0]


def test_more_replicas_are_asked_for_more_at_a_time() -> None:
    generator = load("tiny").generator
    one, two = (in_flight(generator.model_copy(update={"replicas": n}), 16) for n in (1, 2))
    assert one * 16 == 2 * generator.max_sequences
    assert two == 2 * one
    few = generator.model_copy(update={"max_sequences": 4000})
    assert in_flight(few, 1) == 4000, "what a replica accepts"


def test_an_answer_of_other_weights_is_refused() -> None:
    async def generate(request: SamplingRequest) -> list[Completion]:
        spans = (VersionSpan(2, 0, 1), VersionSpan(3, 1, 2))
        return [Completion("x", np.zeros(2, np.int32), np.zeros(2, np.float32), "stop", spans)]

    request = SamplingRequest(Prompt(0, "p", "1", np.zeros(1, np.int32)), 1, 0)
    with pytest.raises(RunError, match=r"version 2 .*version 3"):
        asyncio.run(of_version(generate, 2)(request))


def test_an_evaluation_waits_behind_training_without_its_limit() -> None:
    asked: list[SamplingRequest] = []

    async def generate(request: SamplingRequest) -> list[Completion]:
        asked.append(request)
        return []

    request = SamplingRequest(Prompt(0, "p", "1", np.zeros(1, np.int32)), 200, 0)
    asyncio.run(of_version(generate, 0)(request))
    last_shard = 10**6 * load("tiny").rollout.shards
    assert last_shard < asked[0].priority < BELOW_TRAINING
    admission = Admission("generator/a", requests=2, low_priority=8)
    with admission.admitted(asked), admission.admitted(asked):
        assert admission.sampling_low == 0


def test_a_model_that_was_trained_in_place_is_told_from_before(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(5 * 2**20))
    before = weights_digest(tmp_path)
    assert weights_digest(tmp_path) == before
    weights.write_bytes(bytes(5 * 2**20 - 1) + b"1")
    assert weights_digest(tmp_path) != before
    assert weights_digest(tmp_path / "Qwen") is None


def test_a_step_whose_weights_are_gone_is_left_out_in_one_line(
    tmp_path: Path, console: Console, redis_server: RedisServer
) -> None:
    config: Config = load("tiny", ["run.name=resumed"])
    connect(redis_server.url).hset(Keys("resumed").state, "version", 7)
    evaluate_run(TrainingRun(config, redis_server.url, tmp_path, console), 0)
    assert not (tmp_path / "evaluation").exists()
    [line] = console.file.getvalue().splitlines()
    assert line.startswith("step 0 is not evaluated: the generators hold version 7")


def test_an_evaluation_of_a_run_killed_before_it_was_recorded_is_on_the_views_after_a_resume(
    tmp_path: Path, console: Console, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def drawn(problems: Sequence[Prompt], *_: object, **__: object) -> Counts:
        each = np.ones(len(problems), np.int64)
        return Counts(8, np.arange(len(problems)), each, each, each, each)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluation, "application_calls", lambda *_, exact: (None, None))
    monkeypatch.setattr(evaluation, "evaluate", drawn)
    config = load("tiny", ["run.name=killed", "evaluation.samples=8", "evaluation.k=[1, 8]"])
    run, client = TrainingRun(config, redis_server.url, tmp_path, console), connect(redis_server.url)
    with monkeypatch.context() as dying:
        dying.setattr(evaluation, "record_evaluation", killed)
        with pytest.raises(KeyboardInterrupt):
            evaluate_run(run, 0)
    assert not client.exists(Keys("killed").evaluations)
    evaluate_run(run, 0)
    assert client.hkeys(Keys("killed").evaluations) == [b"0"]
    assert not evaluation.is_missing(config.evaluation, tmp_path, 0)


OTHER = ["reward.answer=boxed", "reward.time_limit_s=60"]
OTHER += ["reward.code_tests.seconds=60", "rollout.stop=['\n']", "rollout.temperature=0.5"]
SAME = ["reward.weights={accuracy: 2.0, format: 0.1}", "learner.steps=9", "run.name=x"]


@pytest.mark.parametrize("change", [*OTHER, *SAME])
def test_samples_are_reused_where_they_do_not_depend_on_a_change(change: str) -> None:
    assert (about_sampling(load("tiny", [change])) == about_sampling(load("tiny"))) is (change in SAME)
