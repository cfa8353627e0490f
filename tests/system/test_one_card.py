"""`hora run` on a machine with one card: generator and learner share it. The card is a resource that Ray was
told of, so that placement and order are real and everything computes on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hora_rl.common.load import load
from hora_rl.deploy.runs.audit_run import audit_run
from tests.support.jsonl import lines

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900)]

RUN = """
import sys
import ray

init = ray.init
ray.init = lambda **options: init(num_gpus=1, **options)
from hora_rl.common.load import load
from hora_rl.deploy.launch.local import run_local
from hora_rl.deploy.checks import run_checks as checks
from hora_rl.deploy.checks import machine

machine.gpus = lambda: ["Told of, 81920 MiB"]
checks.CHECKS = tuple(c for c in checks.CHECKS if c is not machine.versions)  # the CPU build of vLLM is here
run_local(load("tiny", sys.argv[1:]), resume=False, fresh=False)
"""


def test_learner_and_replica_share_one_card(tmp_path: Path) -> None:
    settings = {
        "run.folder": tmp_path / "runs",
        "run.name": "one",
        "rollout.prompts_per_batch": 8,
        "rollout.group_size": 6,
        "rollout.pre_rollouts": 2,
        "rollout.shards": 2,
        "learner.steps": 3,
        "evaluation.path": "null",
        "telemetry.http_port": 0,
    }
    ran = subprocess.run(
        [sys.executable, "-c", RUN, *(f"{key}={value}" for key, value in settings.items())],
        capture_output=True,
        text=True,
        timeout=800,
        env={**os.environ, "COLUMNS": "200", "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "resources: chosen for Told of: generator.gpus = 0.5, generator.kv_cache_gib = " in ran.stdout
    run = tmp_path / "runs" / "one"
    config = load(str(run / "config.yaml"))
    assert (config.generator.gpus, config.learner.gpus) == (0.5, 0.5)
    steps = lines(run / "steps.jsonl")
    assert [s["step"] for s in steps] == [0, 1, 2]
    assert audit_run(run)
