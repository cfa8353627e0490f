"""Weights & Biases without a network, with the real package."""

import math
from pathlib import Path

import pytest

from hora_rl.common.load import load
from hora_rl.learner.records.step_records import log_evaluation
from hora_rl.learner.records.trackers import trackers

pytestmark = pytest.mark.system
STEPS = [{"reward": 0.25, "reward/rewards:score": 0.5}, {"reward": 0.75, "reward/rewards:score": math.nan}]


def test_wandb_offline_keeps_a_run_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    secret = "queue.url=redis://:secret-word@127.0.0.1:1"
    chosen = load("tiny", ["run.name=tracked", secret, "learner.wandb=sums"])
    for tracker in trackers(chosen, tmp_path):
        for step, values in enumerate(STEPS):
            tracker.log(values, step)
        tracker.close()
    log_evaluation(chosen, tmp_path, 2, {"pass@8": 0.5})
    wandb.teardown()
    names = "tracked", "tracked-evaluation"
    [steps], [judged] = (list(tmp_path.glob(f"wandb/offline-run-*/run-{name}.wandb")) for name in names)
    for word in (b"reward/rewards:score", b"0.25", b"0.75", b"NaN"):
        assert word in steps.read_bytes(), word
    assert b"pass@8" in judged.read_bytes()
    assert b"secret-word" not in steps.read_bytes()
