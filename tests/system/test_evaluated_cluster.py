"""`evaluation.every` on a cluster: `serve deploy`, `hora train` with Ray Train's controller, stopped in the
middle of an evaluation and started again."""

import json
import signal

import pytest

from hora_rl.deploy.machine.record import RunFile
from hora_rl.evaluation.results import read_result
from hora_rl.evaluation.run_folders import load_run
from tests.support.cluster import Cluster

STEPS, EVERY, PROMPTS, SAMPLES = 12, 4, 8, 16
SECTIONS = {
    "learner": {"steps": STEPS, "checkpoint_every": 2, "keep_best": "pass@4"},
    "evaluation": {
        "path": "arithmetic",
        "every": EVERY,
        "prompts": PROMPTS,
        "samples": SAMPLES,
        "k": [1, 4],
        "max_sequences": 4,
    },
}

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_a_run_of_hora_train_is_evaluated_while_it_trains_and_keeps_its_best(cluster: Cluster) -> None:
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
