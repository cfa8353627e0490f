"""A code task on the whole stack: programs are tested in sandboxes, success rises, nothing is lost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hora_rl.deploy.runs.audit_run import audit_run
from hora_rl.evaluation.pass_at_k import pass_at_k
from hora_rl.evaluation.run_folders import load_run
from tests.support.jsonl import lines

SETTINGS = {
    "run.name": "code",
    "rollout.prompts_per_batch": 24,
    "rollout.group_size": 12,
    "evaluation.prompts": 60,
    "evaluation.samples": 8,
    "evaluation.k": "[1, 8]",
    "telemetry.http_port": 0,
}

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]


def trained(folder: Path, **more: object) -> Path:
    """The folder of a run that has ended."""
    settings = {**SETTINGS, **more, "run.folder": folder}
    arguments = [part for key, value in settings.items() for part in ("-s", f"{key}={value}")]
    command = [str(Path(sys.executable).with_name("hora")), "run", "tiny-code", *arguments]
    environment = {**os.environ, "COLUMNS": "120"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=1400, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder / "code"


def test_every_step_is_trained_on_success_by_tests_and_the_audit_is_clean(tmp_path: Path) -> None:
    run = trained(tmp_path, **{"learner.steps": 3, "evaluation.path": "null"})
    steps = lines(run / "steps.jsonl")
    assert [s["step"] for s in steps] == [0, 1, 2]
    assert all(0.0 < s["reward/code_tests"] < 1.0 for s in steps)
    groups = lines(run / "groups.jsonl")
    assert {g["rule"] for g in groups} == {"hit_utility"}
    assert len({g["extra"] for g in groups}) > 2, "the budget goes where programs fail"
    assert audit_run(run)


@pytest.mark.slow
def test_the_success_of_held_out_programs_rises(tmp_path: Path) -> None:
    run = trained(tmp_path, **{"learner.steps": 16, "learner.checkpoint_every": 8})
    before, after = load_run(run).results[0], load_run(run).results[-1]
    assert (before.step, after.step) == (0, 16)
    old, new = (pass_at_k(r.correct, r.samples, 1).mean() for r in (before, after))
    assert 0.2 < old < 0.8
    assert new > old + 0.05
