"""A run over real cards: `make test-gpu`. Skipped with the reason where there are not two."""

import json
from pathlib import Path

import pytest
import torch

from deploy.runs.audit_run import audit_run
from tests.system.test_whole_loop import hora

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.system,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        torch.cuda.device_count() < 2,
        reason=f"needs two NVIDIA GPUs, this machine has {torch.cuda.device_count()}",
    ),
]


@pytest.mark.parametrize(
    "settings",
    [
        ("weights.transport=file",),
        ("weights.transport=nccl",),
        ("learner.lora.rank=8", "weights.transport=gloo"),
    ],
    ids=["file", "nccl", "lora"],
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
