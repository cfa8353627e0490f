"""A Ray cluster on free ports, the application by `serve deploy`, the learner beside it: parts come and go,
training does not notice. Evaluations are made on the same cluster.
"""

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
import yaml

from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.load import ROOT
from hora_rl.deploy.machine.record import RunFile
from hora_rl.deploy.monitor.run_state import Kind
from hora_rl.evaluation.results import read_result
from hora_rl.evaluation.run_folders import load_run
from tests.support.cluster import Cluster

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_generators_verifiers_and_coordinators_scale_up_and_down_during_training(cluster: Cluster) -> None:
    one, two, three = ({"num_replicas": n} for n in (1, 2, 3))
    cluster.until_trained(5, verifier=one, coordinator=one)
    learner, [oldest] = cluster.learner_rank(), cluster.alive("generator")

    version = cluster.state().version
    cluster.deploy(generator=three, verifier=two, coordinator=two)
    cluster.until_alive(generator=3, verifier=2, coordinator=2)
    # A replica's first sign of life comes after it has loaded the newest weights.
    late = {name: v for name, v in cluster.first_version.items() if name != oldest.name}
    assert len(late) == 2
    assert min(late.values()) >= version > 0
    cluster.steps_more(5)

    cluster.deploy(generator=one, verifier=one, coordinator=one)
    cluster.until_alive(generator=1, verifier=1, coordinator=1)
    cluster.steps_more(5)
    assert cluster.learner_rank() == learner
    # Who left had answered what it was asked: nobody had to ask again.
    assert cluster.asked_again() == []
    cluster.assert_exact()

    cluster.stop_learner()
    cluster.train(cluster.run / "config.yaml")
    cluster.steps_more(5)
    cluster.assert_exact()


def test_a_replica_without_a_place_is_told_and_sigterm_stops_the_learner(tmp_path: Path) -> None:
    """Two CPUs hold one replica of half a CPU beside the learner, or two as deploy/hora.yaml has them."""
    small = Cluster(tmp_path)
    try:
        small.start(cpus=2)
        small.until_trained(2)
        small.deploy(generator={"num_replicas": 2})
        small.until("the warning", lambda: small.state().warns(Kind.UNPLACED), 60)
        shown = small._command("hora", "monitor", str(small.run), "--once").stdout
        assert "no place for 1 of 2 generator: 2.5 CPUs are reserved" in " ".join(shown.split())
        small.deploy(generator={"num_replicas": 1})
        small.until("no warning", lambda: not small.state().warns(Kind.UNPLACED), 120)
        small.stop_learner(signal.SIGTERM)

        refused = small.folder / "too-many.yaml"
        file = yaml.safe_load((small.folder / "hora.yaml").read_text())
        file["applications"][0]["deployments"][0]["num_replicas"] = 2
        refused.write_text(yaml.safe_dump(file))
        for command in ("check", "train"):
            said = small.refusal(command, str(refused))
            assert "the cluster has 2, the configuration reserves 2.5" in said
        [shipped] = yaml.safe_load((ROOT / "deploy/hora.yaml").read_text())["applications"]
        file["applications"][0]["args"]["generator"]["cpus"] = shipped["args"]["generator"]["cpus"]
        refused.write_text(yaml.safe_dump(file))
        assert small._command("hora", "check", str(refused)).returncode == 0
    finally:
        small.end()


def test_another_run_is_refused_beside_one_that_trains(cluster: Cluster) -> None:
    """Its application would take the generators from the learner. The run that trains notices nothing."""
    cluster.until_trained(2)
    parts = {p.name for kind in ("generator", "coordinator") for p in cluster.alive(kind)}

    file = yaml.safe_load((cluster.folder / "hora.yaml").read_text())
    file["applications"][0]["args"]["run"]["name"] = "second"
    second = cluster.folder / "second.yaml"
    second.write_text(yaml.safe_dump(file))
    refusal = "run 'elastic' trains on this Ray cluster"
    assert cluster._command("serve", "deploy", str(second)).returncode == 0, "Serve judges it later"
    cluster.until("the refusal", lambda: refusal in cluster._command("serve", "status").stdout, 120)
    assert refusal in cluster.refusal("train", str(second))

    cluster.steps_more(3)
    assert {p.name for kind in ("generator", "coordinator") for p in cluster.alive(kind)} == parts
    cluster.stop_learner()
    cluster.learner = None
    assert cluster._command("serve", "deploy", str(second)).returncode == 0
    begun = Keys("second").config
    cluster.until("the second's coordinator", lambda: connect(cluster.redis.url).exists(begun) == 1)


def test_a_served_generator_whose_engine_stands_still_is_replaced_and_not_drained(cluster: Cluster) -> None:
    cluster.until_trained(5)
    [victim] = cluster.alive("generator")
    children = psutil.Process(victim.state["pid"]).children()
    [engine] = [p for p in children if "VLLM::" in " ".join(p.cmdline())]
    engine.suspend()
    began = time.monotonic()

    def replaced() -> bool:
        names = [p.name for p in cluster.alive("generator")]
        return len(names) == 1 and names != [victim.name]

    cluster.until("another in its place", replaced)
    print(f"engine: stopped, another replica after {time.monotonic() - began:.0f} s")
    assert not engine.is_running()
    cluster.steps_more(5)
    assert cluster.asked_again(), "what it had been asked was asked again"
    cluster.assert_exact()


def test_serve_scales_the_generators_with_the_requests_in_flight(cluster: Cluster) -> None:
    scaling = {"min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 2, "upscale_delay_s": 1}
    scaling |= {"downscale_delay_s": 5, "metrics_interval_s": 1, "look_back_period_s": 3}
    cluster.deploy(generator={"autoscaling_config": scaling})
    cluster.train()
    cluster.until_alive(generator=2)
    cluster.steps_more(5)
    cluster.pause(True)
    cluster.until_alive(generator=1)
    cluster.pause(False)
    cluster.steps_more(5)
    cluster.assert_exact()


def test_a_transfer_group_is_formed_anew_when_replicas_come_die_and_go(cluster: Cluster) -> None:
    def newest_on(replicas: int) -> bool:
        held = [p.state.get("version", 0) for p in cluster.alive("generator")]
        return len(held) == replicas and min(held) >= cluster.state().version - 1 > 0

    one, two = {"num_replicas": 1}, {"num_replicas": 2}
    cluster.until_trained(5, "gloo")
    learner = cluster.learner_rank()

    cluster.deploy("gloo", generator=two)
    cluster.until("two replicas on new weights", lambda: newest_on(2))
    cluster.steps_more(5)

    # While nothing is asked for no step is made and no version published: who comes now must be sent the last
    # one again.
    cluster.pause(True)
    cluster.until("a learner that waits", lambda: cluster.stands_still(20.0))
    version, victim = cluster.state().version, cluster.alive("generator")[0]
    os.kill(victim.state["pid"], signal.SIGKILL)
    cluster.until(
        "the dead replica's silence", lambda: victim.name not in {p.name for p in cluster.alive("generator")}
    )
    cluster.until("its successor on the newest weights", lambda: newest_on(2))
    assert cluster.state().version == version
    cluster.pause(False)
    cluster.steps_more(5)

    cluster.deploy("gloo", generator=one)
    cluster.until_alive(generator=1)
    cluster.steps_more(5)
    assert cluster.learner_rank() == learner
    cluster.assert_exact()


STEPS, EVERY, PROMPTS, SAMPLES = 12, 4, 8, 16
SECTIONS = {
    "learner": {"steps": STEPS, "checkpoint_every": 2, "keep_best": "pass@4"},
    "evaluation": {"path": "arithmetic", "every": EVERY, "prompts": PROMPTS, "samples": SAMPLES}
    | {"k": [1, 4], "max_sequences": 4},
}


def test_a_run_of_hora_train_is_evaluated_while_it_trains_and_keeps_its_best(cluster: Cluster) -> None:
    """Also when it is stopped in the middle of an evaluation and started again."""
    cluster.deploy(sections=SECTIONS, generator={"num_replicas": 1})
    cluster.until_alive(generator=1)
    cluster.train()
    folder = cluster.run / "evaluation"
    first = folder / "arithmetic-step0.samples.jsonl"
    cluster.until("an evaluation under way", lambda: first.exists() and first.read_bytes().count(b"\n") > 3)
    begun = first.read_bytes()
    cluster.stop_learner(signal.SIGTERM)

    cluster.train(cluster.run / "config.yaml")
    assert cluster.learner is not None
    assert cluster.learner.wait(900) == 0, (cluster.folder / "train.log").read_text()[-3000:]
    assert RunFile(cluster.run).read().state == "finished"
    cluster.assert_exact()

    assert first.read_bytes().startswith(begun), "what was sampled before the stop is used"
    found = {r.step: r for r in map(read_result, folder.glob("*-step*.json"))}
    assert {0, STEPS} <= set(found)
    assert set(found) - {0, STEPS} <= {4, 8}
    assert all(r.samples == SAMPLES and len(r.correct) == PROMPTS for r in found.values())
    assert all(r.versions[0] >= step for step, r in found.items())
    assert found[STEPS].versions == [STEPS, STEPS]
    assert load_run(cluster.run).results, "the report finds them"
    best = json.loads((cluster.run / "best" / "best.json").read_text())
    values = {step: next(e.value for e in r.estimates() if e.k == 4) for step, r in found.items()}
    assert best["value"] == max(values.values())
    assert not (cluster.run / "candidates").exists()
