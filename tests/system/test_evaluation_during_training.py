"""Evaluations during training.

The whole stack is killed in the middle of an evaluation, while the run trains and again after its last step.
The resumed run completes both: every sample once, on weights that the result names.
"""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hora_rl.evaluation.results import Result, read_result
from hora_rl.evaluation.rollout_table import read_rollouts
from tests.support.jsonl import samples

STEPS, EVERY, PROMPTS, SAMPLES = 18, 9, 8, 64


def evaluated(every: int, samples: int, **more: object) -> dict[str, object]:
    """Settings of evaluations during training."""
    settings = {"path": "arithmetic", "every": every, "prompts": PROMPTS, "samples": samples, "k": "[1, 4]"}
    return {f"evaluation.{key}": value for key, value in settings.items()} | more


pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]


def drawn(run: Path, step: int) -> list[dict[str, Any]]:
    return samples(run / "evaluation" / f"arithmetic-step{step}.samples.jsonl")


def test_training_goes_on_during_an_evaluation_that_names_its_versions(live_run: Callable[..., Any]) -> None:
    """On two replicas, which both sample the evaluation and training's rollouts."""
    run = live_run(STEPS, **evaluated(EVERY, SAMPLES, **{"generator.replicas": 2}))
    run.finish()
    run.assert_exact()
    columns = ["replica", "version_min"]
    trained = {(r["replica"], r["version_min"]) for r in read_rollouts(run.run, columns=columns).to_pylist()}
    for step in range(EVERY, STEPS, EVERY):
        found = drawn(run.run, step)
        assert len(found) == PROMPTS * SAMPLES == len({(s["problem"], s["sample"]) for s in found})
        met = [v for s in found for v in s["versions"]]
        result = read_result(run.run / "evaluation" / f"arithmetic-step{step}.json")
        assert result.versions == [min(met), max(met)]
        assert min(met) >= step
        assert {v for _, v in trained} & set(range(step, step + EVERY)), "training went on"
    assert len({replica for replica, _ in trained}) == 2


# Slow enough to be killed in the middle.
KILLED_EVERY, KILLED_SAMPLES, KILLED_STEPS = 10, 16, 30
KILLED = evaluated(
    KILLED_EVERY, KILLED_SAMPLES, **{"evaluation.max_sequences": 4, "rollout.samples_per_request": 4}
)


def kill_during(run: Any, step: int, after_s: float = 0.0) -> list[dict]:
    """Kill everything when the evaluation of `step` is under way; what it had sampled."""
    run.wait_for(lambda: len(drawn(run.run, step)) > 4, f"samples of step {step}")
    time.sleep(after_s)
    run.kill_everything()
    result = run.run / "evaluation" / f"arithmetic-step{step}.json"
    assert not result.exists(), "it was to be killed before its end"
    return drawn(run.run, step)


def check_completed(run: Any, step: int, before: list[dict]) -> tuple[list[dict], Result]:
    """Samples and result of the evaluation of `step`, of which `before` is a part."""
    found = drawn(run.run, step)
    assert found[: len(before)] == before, "nothing is sampled again"
    return found, read_result(run.run / "evaluation" / f"arithmetic-step{step}.json")


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["file", "gloo"])
def test_an_evaluation_that_was_killed_with_everything_else_is_completed_once(
    transport: str, live_run: Callable[..., Any]
) -> None:
    run = live_run(KILLED_STEPS, **KILLED, **{"weights.transport": transport})
    begun = {KILLED_EVERY: kill_during(run, KILLED_EVERY)}
    run.start("--resume")
    begun[KILLED_STEPS] = kill_during(run, KILLED_STEPS)
    run.start("--resume")
    run.finish()
    run.assert_exact()
    for step, before in begun.items():
        found, result = check_completed(run, step, before)
        assert len(found) == PROMPTS * KILLED_SAMPLES == len({(s["problem"], s["sample"]) for s in found})
        assert sum(result.correct) == sum(s["success"] for s in found)
        met = [v for s in found for v in s["versions"]]
        assert result.versions == [min(met), max(met)]
        assert min(met) >= step
    assert max(met) == KILLED_STEPS, "after training there is one version"


@pytest.mark.slow
def test_a_replica_that_dies_in_the_last_evaluation_gets_weights_again(live_run: Callable[..., Any]) -> None:
    prompts = 50
    settings = {"evaluation.every": "null", "evaluation.prompts": prompts, "weights.transport": "gloo"}
    run = live_run(3, **KILLED | settings)
    run.wait_for(lambda: len(drawn(run.run, 3)) > 4, "samples of step 3")
    run.kill("generator", random.Random(0), within_s=0.0)
    before = drawn(run.run, 3)
    assert len(before) < prompts * KILLED_SAMPLES, "it was to be killed before its end"
    run.finish()
    run.assert_exact()
    found, result = check_completed(run, 3, before)
    assert len(found) == prompts * KILLED_SAMPLES
    assert result.versions == [3, 3]


@pytest.mark.slow
def test_the_first_step_is_not_published_before_the_first_evaluation(live_run: Callable[..., Any]) -> None:
    """Killed between the learner's first step and the end of the evaluation of step 0. That one is completed
    on version 0 before any newer weights leave the learner."""
    many = {"evaluation.prompts": 200, "evaluation.every": "null"}
    run = live_run(3, **KILLED | many)
    run.until(1)
    before = kill_during(run, 0, after_s=2.0)
    assert run.trained() == 1, "the second step waits"
    run.start("--resume")
    run.finish()
    run.assert_exact()
    found, result = check_completed(run, 0, before)
    assert result.versions == [0, 0]
    assert {v for s in found for v in s["versions"]} == {0}
