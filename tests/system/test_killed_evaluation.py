"""The whole stack is killed in the middle of an evaluation, while the run trains and again after its last
step. The resumed run completes both: every sample once, on weights that the result names."""

import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from hora_rl.evaluation.results import read_result
from tests.support.jsonl import samples

STEPS, EVERY, PROMPTS, SAMPLES = 30, 10, 8, 16
SETTINGS = {
    "evaluation.path": "arithmetic",
    "evaluation.every": EVERY,
    "evaluation.prompts": PROMPTS,
    "evaluation.samples": SAMPLES,
    "evaluation.k": "[1, 4]",
    "evaluation.max_sequences": 4,
    "rollout.samples_per_request": 4,
}

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(1500)]


def kill_during(run: Any, step: int) -> list[dict]:
    """Kill everything when the evaluation of `step` is under way; what it had sampled."""
    path = run.run / "evaluation" / f"arithmetic-step{step}.samples.jsonl"
    run.wait_for(lambda: len(samples(path)) > 4, f"samples of step {step}")
    run.kill_everything()
    assert not path.with_name(f"arithmetic-step{step}.json").exists(), "it was to be killed before its end"
    return samples(path)


@pytest.mark.parametrize("transport", ["file", "gloo"])
def test_an_evaluation_that_was_killed_with_everything_else_is_completed_once(
    transport: str, live_run: Callable[..., Any]
) -> None:
    run = live_run(STEPS, **SETTINGS, **{"weights.transport": transport})
    begun = {EVERY: kill_during(run, EVERY)}
    run.start("--resume")
    begun[STEPS] = kill_during(run, STEPS)
    run.start("--resume")
    run.finish()
    run.assert_exact()
    for step, before in begun.items():
        path = run.run / "evaluation" / f"arithmetic-step{step}.samples.jsonl"
        drawn, result = samples(path), read_result(path.with_name(f"arithmetic-step{step}.json"))
        assert drawn[: len(before)] == before, "nothing is sampled again"
        assert set(Counter((s["problem"], s["sample"]) for s in drawn).values()) == {1}
        assert len(drawn) == PROMPTS * SAMPLES
        assert sum(result.correct) == sum(s["success"] for s in drawn)
        met = [v for s in drawn for v in s["versions"]]
        assert result.versions == [min(met), max(met)]
        assert min(met) >= step
    assert max(met) == STEPS, "after training there is one version"


@pytest.mark.parametrize("transport", ["file", "gloo"])
def test_a_replica_that_dies_in_the_last_evaluation_gets_the_last_weights_again(
    transport: str, live_run: Callable[..., Any]
) -> None:
    own = {"evaluation.every": "null", "weights.transport": transport}
    run = live_run(3, **SETTINGS | own)
    path = run.run / "evaluation" / "arithmetic-step3.samples.jsonl"
    run.wait_for(lambda: len(samples(path)) > 4, "samples of step 3")
    run.kill("generator", random.Random(0), within_s=0.0)
    assert len(samples(path)) < PROMPTS * SAMPLES, "it was to be killed before the end"
    run.finish()
    run.assert_exact()
    assert read_result(path.with_name("arithmetic-step3.json")).versions == [3, 3]
    assert len(samples(path)) == PROMPTS * SAMPLES


def test_the_first_step_is_not_published_before_the_initial_policy_is_measured(
    live_run: Callable[..., Any],
) -> None:
    """Killed between the learner's first step and the end of the evaluation of step 0. That one is completed
    on version 0 before any newer weights leave the learner."""
    many = {"evaluation.prompts": 200, "evaluation.every": "null"}
    run = live_run(3, **SETTINGS | many)
    path = run.run / "evaluation" / "arithmetic-step0.samples.jsonl"
    run.until(1)
    run.wait_for(lambda: len(samples(path)) > 4, "samples of step 0")
    time.sleep(2.0)
    run.kill_everything()
    assert not path.with_name("arithmetic-step0.json").exists(), "it was to be killed before its end"
    assert run.trained() == 1, "the second step waits"
    before = samples(path)
    run.start("--resume")
    run.finish()
    run.assert_exact()
    drawn, result = samples(path), read_result(path.with_name("arithmetic-step0.json"))
    assert drawn[: len(before)] == before
    assert result.versions == [0, 0]
    assert {v for s in drawn for v in s["versions"]} == {0}
