"""Evaluations during training. On two generators one stays at the version of the evaluation, the other
trains.

The whole stack is killed in the middle of an evaluation, while the run trains and again after its last step.
The resumed run completes both: every sample once, on weights that the result names.
"""

import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hora_rl.common.live.keys import Keys
from hora_rl.common.live.pin_lease import LEASE_S
from hora_rl.common.live.redis import connect
from hora_rl.deploy.monitor.reading import read_run
from hora_rl.deploy.monitor.run_state import Kind, Part, RunState
from hora_rl.evaluation.results import Result, read_result
from hora_rl.evaluation.rollout_table import read_rollouts
from tests.support.cluster import Cluster
from tests.support.jsonl import samples

STEPS, EVERY, PROMPTS, SAMPLES = 27, 9, 8, 64
STEPS_DUE = (EVERY, 2 * EVERY)


def evaluated(every: int, samples: int, **more: object) -> dict[str, object]:
    """Settings of evaluations during training."""
    settings = {"path": "arithmetic", "every": every, "prompts": PROMPTS, "samples": samples, "k": "[1, 4]"}
    return {f"evaluation.{key}": value for key, value in settings.items()} | more


PINNED = evaluated(EVERY, SAMPLES, **{"generator.replicas": 2})
pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]


class Watch:
    """Snapshots of a run, as views show them, until it ends."""

    def __init__(self, run: Any, url: str) -> None:
        self._run, self._redis = run, connect(url)
        self.seen: list[RunState] = []

    def until(self, holds: Callable[[RunState], object], what: str) -> RunState:
        def seen() -> bool:
            if not self._redis.exists(Keys("live").config):
                return False
            self.seen.append(read_run(self._redis, "live"))
            return bool(holds(self.seen[-1]))

        self._run.wait_for(seen, what)
        return self.seen[-1]

    def wrongly_warned(self) -> list[str]:
        """That weights differ, or that a replica is late while an evaluation keeps it. With steps this short
        any other replica may be late for the time between two heartbeats."""
        kept = ((s, p) for s in self.seen for p in s.of("generator") if {"pinned", "released"} & {*p.state})
        late = {
            str(w) for s, p in kept for w in s.warnings if w.kind == Kind.REPLICA_BEHIND and p.name in w.text
        }
        return [*late, *(str(w) for s in self.seen for w in s.warnings if w.kind == Kind.WEIGHTS_DISAGREE)]


def pinned(state: RunState) -> Part | None:
    return next((p for p in state.of("generator") if "pinned" in p.state and p.silent_s < 5), None)


def drawn(run: Path, step: int) -> list[dict[str, Any]]:
    return samples(run / "evaluation" / f"arithmetic-step{step}.samples.jsonl")


@pytest.mark.parametrize(
    ("transport", "steps"),
    [("file", STEPS), pytest.param("gloo", 2 * EVERY + 2, marks=pytest.mark.slow)],
)
def test_an_evaluation_is_of_one_version_while_training_goes_on(
    transport: str, steps: int, live_run: Callable[..., Any], redis_url: str
) -> None:
    """Over `gloo` training ends soon after the second evaluation has begun. Its replica must have
    the last version then, for nobody is there to send it."""
    connect(redis_url).flushdb()
    run = live_run(steps, **PINNED, **{"weights.transport": transport, "queue.url": redis_url})
    watch = Watch(run, redis_url)
    first = pinned(watch.until(pinned, "pinned replica"))
    assert first is not None
    began = time.monotonic()
    version = first.state["pinned"]
    assert first.state["state"] == f"pinned at v{version} for an evaluation"
    during = watch.until(lambda state: state.version >= version + 2, "training during an evaluation")
    stays = pinned(during)
    assert stays is not None
    assert (stays.name, stays.state["version"]) == (first.name, version), "it was to be spanned"

    def caught_up(state: RunState) -> bool:
        mine = next(p for p in state.of("generator") if p.name == first.name)
        return "pinned" not in mine.state and mine.state["version"] >= state.version > version

    released = watch.until(lambda state: not pinned(state), "end of the pin")
    print(f"pinned at v{version} for {time.monotonic() - began:.1f} s, until v{released.version}")
    watch.until(caught_up, "replica that serves the newest weights again")
    watch.until(lambda state: state.version >= steps - 1, "last step")
    run.finish()
    run.assert_exact()
    assert not (run.run / "redis").exists(), "a Redis of the run's own beside the one that is named"

    due = STEPS_DUE if transport == "file" else (EVERY,)
    for step in due:
        found = drawn(run.run, step)
        met = {v for s in found for v in s["versions"]}
        result = read_result(run.run / "evaluation" / f"arithmetic-step{step}.json")
        assert len(found) == PROMPTS * SAMPLES
        assert result.versions == [*met, *met], "one version"
        assert step <= min(met) <= step + 2
    assert read_result(run.run / "evaluation" / f"arithmetic-step{steps}.json").versions == [steps, steps]
    assert not watch.wrongly_warned()
    sums: dict[int, dict[str, str]] = defaultdict(dict)
    for state in watch.seen:
        for part in state.of("generator"):
            sums[part.state["version"]][part.name] = part.state["checksum"]
    assert all(len(set(held.values())) == 1 for held in sums.values()), sums
    assert [v for v, held in sums.items() if v > version and len(held) == 2], "both hold later versions"
    columns = ["replica", "version_min", "version_max"]
    rows = read_rollouts(run.run, columns=columns).to_pylist()
    mine = {v for r in rows if first.name == r["replica"] for v in (r["version_min"], r["version_max"])}
    theirs = {v for r in rows if first.name != r["replica"] for v in (r["version_min"], r["version_max"])}
    assert not mine & {version + 1, version + 2}, "what is pinned is not trained on"
    assert {version + 1, version + 2} <= theirs
    if transport == "file":  # over `gloo` the run may end before it gets a request
        assert max(mine) > version + 2, "it trains again"


@pytest.mark.slow
def test_a_run_ends_clean_whose_coordinator_and_pinned_replica_are_killed(
    live_run: Callable[..., Any], redis_url: str
) -> None:
    connect(redis_url).flushdb()
    run = live_run(STEPS, **PINNED, **{"queue.url": redis_url})
    watch = Watch(run, redis_url)
    watch.until(pinned, "pinned replica")
    run.kill("coordinator", random.Random(0), within_s=0.0)
    again = watch.until(
        lambda state: (part := pinned(state)) and part.state["pinned"] >= 2 * EVERY, "second evaluation"
    )
    victim = pinned(again)
    assert victim is not None
    run.wait_for(lambda: len(drawn(run.run, 2 * EVERY)) > PROMPTS, "samples of the second evaluation")
    os.kill(victim.state["pid"], signal.SIGKILL)
    run.finish()
    run.assert_exact()

    whole = read_result(run.run / "evaluation" / f"arithmetic-step{EVERY}.json")
    assert whole.versions[0] == whole.versions[1], "no coordinator takes part in an evaluation"
    met = {v for s in drawn(run.run, 2 * EVERY) for v in s["versions"]}
    assert min(met) == victim.state["pinned"]
    for step in STEPS_DUE:
        found = drawn(run.run, step)
        assert len({(s["problem"], s["sample"]) for s in found}) == len(found)
    assert len(drawn(run.run, EVERY)) == PROMPTS * SAMPLES  # training may end before the other one is whole


@pytest.mark.slow
def test_a_replica_whose_evaluator_is_killed_takes_the_newest_weights_and_serves(cluster: Cluster) -> None:
    evaluation = {"path": "arithmetic", "every": 50, "prompts": 8, "samples": 4096, "k": [1]}
    cluster.deploy(sections={"evaluation": evaluation}, generator={"num_replicas": 2})
    cluster.until_alive(generator=2)
    cluster.train()

    def kept() -> list[Part]:
        return [p for p in cluster.alive("generator") if "pinned" in p.state]

    cluster.until("a pinned replica", lambda: bool(kept()))
    [stays] = kept()
    cluster.until("training meanwhile", lambda: cluster.state().version >= stays.state["pinned"] + 3)
    assert [p.name for p in kept()] == [stays.name], "the evaluation was to be longer"
    killed, cluster.learner = cluster.learner, None
    assert killed is not None
    killed.kill()
    killed.wait(60)

    def caught_up() -> bool:
        newest = cluster.state().version
        return not kept() and [p.state["version"] for p in cluster.alive("generator")] == [newest, newest]

    cluster.until("both on the newest weights", caught_up, 2 * LEASE_S + 10)
    assert len({p.state["checksum"] for p in cluster.alive("generator")}) == 1
    assert stays.name in {p.name for p in cluster.alive("generator")}, "it was not replaced"
    cluster.train(cluster.run / "config.yaml")
    cluster.steps_more(10)
    cluster.assert_exact()


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
    run = live_run(3, **KILLED | {"evaluation.every": "null", "weights.transport": "gloo"})
    run.wait_for(lambda: len(drawn(run.run, 3)) > 4, "samples of step 3")
    run.kill("generator", random.Random(0), within_s=0.0)
    before = drawn(run.run, 3)
    assert len(before) < PROMPTS * KILLED_SAMPLES, "it was to be killed before its end"
    run.finish()
    run.assert_exact()
    found, result = check_completed(run, 3, before)
    assert len(found) == PROMPTS * KILLED_SAMPLES
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
