"""The smallest environment over the whole stack: the tiny model learns to guess, a replica of environments is
killed meanwhile, the audit finds nothing, and the run is evaluated in episodes. It learns an environment of
the library `verifiers` too. In built-in environments and where the template renders the history, generator
and learner agree on every turn, whatever is a sequence."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from hora_rl.deploy.verifiers_rows import app
from hora_rl.evaluation.results import read_result
from tests.support.jsonl import lines, write_lines
from tests.support.verifiers_python import PYTHON, ROOT, needs_verifiers
from tests.system.conftest import PARTS, PORTS_WITHOUT_A_SETTING, LiveRun, hora, options

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]
STEPS, EVERY, SAMPLES = 6, 3, 16
PARTS["environment"] = "ray::ServeReplica:hora:environment"


def numbers(folder: Path) -> Path:
    """Held-out problems: one for each number."""
    return write_lines(folder / "numbers.jsonl", ({"problem": "n=", "answer": str(n)} for n in range(7)))


def assert_episodes(folder: Path, step: int) -> None:
    """The evaluation of `step` drew episodes of several turns, and counted those that were solved."""
    (head, *samples) = lines(folder / f"numbers-step{step}.samples.jsonl")
    assert head["about"]["environment"]["path"] == "guess"
    result = read_result(folder / f"numbers-step{step}.json")
    assert len(samples) == 7 * SAMPLES
    assert {s["length"] for s in samples} == {1, 2, 3}
    assert all(s["success"] == (s["rewards"]["episode.solved"] == 1.0) for s in samples)
    assert sum(result.correct) == sum(s["success"] for s in samples) > 0


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveRun]:
    folder = tmp_path_factory.mktemp("guess")
    settings = {"rollout.prompts_per_batch": 28, "rollout.group_size": 16, "rollout.pre_rollouts": 4}
    settings |= {"rollout.shards": 4, "telemetry.rollouts": "logprobs", "evaluation.k": "[1, 16]"}
    settings |= {"evaluation.path": numbers(folder), "evaluation.every": EVERY, "evaluation.samples": SAMPLES}
    with LiveRun(folder, STEPS, preset="tiny-guess", **settings) as run:
        run.until(2)
        assert run.open_ports() <= PORTS_WITHOUT_A_SETTING
        run.kill("environment", random.Random(0))
        run.finish()
        yield run


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveRun]:
    """A game of several turns of the library `verifiers` that knows nothing of us."""
    folder = tmp_path_factory.mktemp("library")
    example = str(ROOT / "examples/verifiers_guess.yaml")
    settings = {
        "data.path": folder / "rows.jsonl",
        "model.path": ROOT / "deploy/demo/model",
        "environment.verifiers.python": PYTHON,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT / "examples"))
        done = CliRunner().invoke(app, [example, *options(settings)], catch_exceptions=False)
        assert done.stdout.endswith("rows.jsonl: 42 rows\n"), done.output
        with LiveRun(folder, 12, preset=example, **settings) as run:
            run.finish()
            yield run


@pytest.fixture(
    params=["finished", pytest.param("library", marks=[pytest.mark.slow, needs_verifiers])], scope="module"
)
def either(request: pytest.FixtureRequest) -> LiveRun:
    run: LiveRun = request.getfixturevalue(request.param)
    return run


def test_hits_rise(either: LiveRun) -> None:
    success = [s["success"] for s in lines(either.run / "steps.jsonl")]
    print("success by step:", [round(s, 2) for s in success])
    assert np.mean(success[-3:]) > success[0] + 0.05


def test_the_audit_is_clean_and_generator_and_learner_agree_on_every_turn(either: LiveRun) -> None:
    either.assert_exact()
    steps = lines(either.run / "steps.jsonl")
    drifts = [s["drift"] for s in steps if "drift" in s]
    assert drifts
    assert max(drifts) < 1e-4, "float32 on both sides: the same context, or log-probs would differ"
    assert all(1.0 < s["turns/mean"] <= 3.0 for s in steps)


def test_what_was_said_is_in_the_rollouts(finished: LiveRun) -> None:
    rows = pq.read_table(finished.run / "rollouts" / f"step-{STEPS - 1:08d}.parquet").to_pylist()
    several = [r for r in rows if r["length"] > 1]
    assert several
    assert all("\n" in r["completion"] for r in several)
    for row in rows:
        assert row["success"] == (row["reward/episode.solved"] == 1.0)


def test_the_run_is_evaluated_in_episodes_before_between_and_after(finished: LiveRun) -> None:
    folder = finished.run / "evaluation"
    assert_episodes(folder, 0)
    assert_episodes(folder, STEPS)
    results = {r.step: r for r in map(read_result, folder.glob("numbers-step*.json"))}
    assert results[0].versions == [0, 0]
    assert results[STEPS].versions == [STEPS, STEPS]
    # Training may end before the one between is complete.
    _, *between = lines(folder / f"numbers-step{EVERY}.samples.jsonl")
    assert min(s["versions"][0] for s in between) >= EVERY
    assert max(s["length"] for s in between) > 1


@pytest.mark.slow
def test_hora_eval_plays_episodes_with_a_finished_model(finished: LiveRun, tmp_path: Path) -> None:
    asked = ("--benchmark", numbers(tmp_path), "--samples", SAMPLES, "--k", "1,16", "--out", tmp_path)
    hora("eval", finished.run / "model", *asked, "-s", "telemetry.http_port=0")
    assert_episodes(tmp_path, STEPS)


BLOCKING = """
import time

async def blocks(row, policy, sandbox):
    await policy.generate()
    time.sleep(3600)
"""


@pytest.mark.slow
def test_an_environment_that_blocks_stops_the_run_with_its_line(
    live_run: Callable[..., LiveRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "blocking_rooms.py").write_text(BLOCKING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    path = {"environment.path": "blocking_rooms:blocks"}
    limits = {"environment.time_limit_s": 5}
    said = " ".join(live_run(2, preset="tiny-guess", **path, **limits).fail().split())
    assert "environment blocking_rooms:blocks blocks its replica at" in said
    assert "blocking_rooms.py:6 in blocks" in said


TWICE = """
from hora_rl.actors.environment.protocol import Episode, EpisodeOver
from hora_rl.actors.environment.registry import python_tool

class Asks:
    # The demo model calls no tool by itself: its first turn is read as if it had.
    def __init__(self, policy, call):
        self._policy, self._call, self._asked = policy, call, False

    async def generate(self, *new):
        said = await self._policy.generate(*new)
        if self._asked:
            return said
        self._asked = True
        return type(said)(self._call, said.tokens, said.finish_reason)

async def programs(row, policy, sandbox):
    return await python_tool(row, Asks(policy, "```python\\nprint(6 * 7)\\n```"), sandbox)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "history"),
    [("python", "append"), ("asking_rooms:programs", "render"), ("asking_rooms:programs", "append")],
)
def test_generator_and_learner_agree_on_built_in_environments_and_rendered_histories(
    live_run: Callable[..., LiveRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, history: str
) -> None:
    (tmp_path / "asking_rooms.py").write_text(TWICE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    settings = {"environment.path": path, "environment.history": history, "rollout.max_staleness": 0}
    limits = {"environment.max_turn_tokens": 60, "environment.max_given_tokens": 120}
    run = live_run(2, **settings, **limits)
    run.finish()
    run.assert_exact()
    steps = lines(run.run / "steps.jsonl")
    assert len(steps) == 2
    assert max(s["drift"] for s in steps if "drift" in s) < 1e-4
    if path != "python":
        assert all(s["turns/mean"] > 1.0 for s in steps)
        rows = pq.read_table(run.run / "rollouts" / "step-00000001.parquet").to_pylist()
        assert any("42" in row["completion"] for row in rows)
