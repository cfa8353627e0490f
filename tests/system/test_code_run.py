"""A code task on the whole stack: programs are tested in sandboxes, success rises, nothing is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.runs.audit_run import audit_run
from evaluation.pass_at_k import pass_at_k
from evaluation.run_folders import load_run

STEPS = 16
SETTINGS = {
    "run.name": "code",
    "rollout.prompts_per_batch": 24,
    "rollout.group_size": 12,
    "learner.steps": STEPS,
    "learner.checkpoint_every": 8,
    "evaluation.prompts": 60,
    "evaluation.samples": 8,
    "evaluation.k": "[1, 8]",
    "telemetry.http_port": 0,
}

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    settings = {**SETTINGS, "run.folder": folder}
    arguments = [part for key, value in settings.items() for part in ("-s", f"{key}={value}")]
    command = [str(Path(sys.executable).with_name("hora")), "run", "tiny-code", *arguments]
    environment = {**os.environ, "COLUMNS": "120"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=1400, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder / "code"


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_step_is_trained_on_success_by_tests_and_the_audit_is_clean(run: Path) -> None:
    steps = lines(run / "steps.jsonl")
    assert [s["step"] for s in steps] == list(range(STEPS))
    assert all("reward/code_tests" in s for s in steps)
    groups = lines(run / "groups.jsonl")
    assert {g["rule"] for g in groups} == {"hit_utility"}
    assert len({g["extra"] for g in groups}) > 2, "the budget goes where programs fail"
    assert audit_run(run)


def test_the_success_of_held_out_programs_rises(run: Path) -> None:
    before, after = load_run(run).results[0], load_run(run).results[-1]
    assert (before.step, after.step) == (0, STEPS)
    old, new = (pass_at_k(r.correct, r.samples, 1).mean() for r in (before, after))
    assert 0.2 < old < 0.8
    assert new > old + 0.05
