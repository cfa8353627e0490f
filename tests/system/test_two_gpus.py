"""Runs over real cards: `make test-gpu`. Skipped with the reason where there are not two."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hora_rl.deploy.runs.audit_run import audit_run
from tests.support.cluster import Cluster
from tests.support.small_run import hora
from tests.support.two_gpus import trained

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.system,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        torch.cuda.device_count() < 2,
        reason=f"needs two NVIDIA GPUs, this machine has {torch.cuda.device_count()}",
    ),
]


@pytest.mark.parametrize("transport", ["file", "nccl"])
def test_the_deployment_for_two_gpus_trains_with_little_drift_and_equal_checksums(
    cluster: Cluster, transport: str
) -> None:
    """With the file's own model where it was fetched before, else with the demo's."""
    print(f"trained over {transport}: {trained(cluster, transport)}")


@pytest.mark.parametrize(
    "settings",
    [
        ("learner.lora.rank=8", "weights.transport=gloo"),
        pytest.param(
            ("weights.transport=nccl", "generator.tensor_parallel=2", "learner.workers=1"),
            marks=pytest.mark.skipif(
                torch.cuda.device_count() < 3,
                reason=f"needs three NVIDIA GPUs, this machine has {torch.cuda.device_count()}",
            ),
        ),
    ],
    ids=["lora", "tensor parallel"],
)
def test_generators_and_learner_agree_on_every_version(tmp_path: Path, settings: tuple[str, ...]) -> None:
    every = ("learner.steps=5", "model.dtype=bfloat16", "evaluation.path=null", *settings)
    result = hora(tmp_path, *(part for setting in every for part in ("-s", setting)))
    assert result.returncode == 0, result.stdout + result.stderr
    run = tmp_path / "runs" / "loop"
    steps = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    assert len(steps) == 5
    measured = [s["drift"] for s in steps if "drift" in s]
    assert measured
    assert max(measured) < 0.02
    assert max(s["time/checksum"] for s in steps) < 0.2
    assert audit_run(run)


def test_a_replica_that_is_killed_about_a_broadcast_costs_nothing(live_run: Callable[..., Any]) -> None:
    """Several times, because a broadcast is short."""
    run = live_run(20, **{"weights.transport": "nccl", "model.dtype": "bfloat16"})
    for step in (2, 6, 10):
        run.until(step)
        run.kill("generator", random.Random(step))
    run.finish()
    run.assert_exact()
