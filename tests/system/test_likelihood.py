"""The likelihood objective on the whole stack: four rounds that stop at a hit, trained on hits alone, nothing
lost."""

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
    "run.name": "likelihood",
    "telemetry.http_port": 0,
    "allocation.warmup.cycles": 1,
    "allocation.warmup.format_reward": 0.1,
}

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]


def trained(folder: Path, **more: object) -> Path:
    """The folder of a run that has ended."""
    settings = {**SETTINGS, **more, "run.folder": folder}
    arguments = [part for key, value in settings.items() for part in ("-s", f"{key}={value}")]
    command = [str(Path(sys.executable).with_name("hora")), "run", "tiny-likelihood", *arguments]
    environment = {**os.environ, "COLUMNS": "120"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=1100, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder / "likelihood"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("run"), **{"learner.steps": 6, "evaluation.path": "null"})


def test_four_rounds_spend_the_budget_exactly_and_the_audit_is_clean(run: Path) -> None:
    groups = [g for g in lines(run / "groups.jsonl") if g["rule"] == "first_hit"]
    assert max(len(g["rounds"]) for g in groups) == 4
    assert all(sum(g["rounds"]) == g["extra"] for g in groups)
    assert all(g["successes"] + sum(g["round_hits"]) == g["hits"] for g in groups)
    for batch in {g["batch"] for g in groups}:
        whole = [g["size"] for g in groups if g["batch"] == batch]
        assert len(whole) < 40 or sum(whole) == 40 * 16
    assert audit_run(run)
    steps = lines(run / "steps.jsonl")
    assert all(s["applied"] == 1.0 for s in steps)
    assert max(s["drift"] for s in steps if "drift" in s) < 1e-4


def test_a_prompt_with_a_hit_is_served_after_all_others_alone(run: Path) -> None:
    groups = [g for g in lines(run / "groups.jsonl") if g["rule"] == "first_hit"]
    none, some = ([g["extra"] for g in groups if (g["successes"] > 0) is hit] for hit in (False, True))
    assert sum(none) / len(none) > 2 * sum(some) / len(some)


@pytest.mark.slow
def test_the_demo_learns(tmp_path: Path) -> None:
    evaluation = {"evaluation.prompts": 60, "evaluation.samples": 16, "evaluation.k": "[1, 16]"}
    run = trained(tmp_path, **{"learner.steps": 16, "learner.checkpoint_every": 8}, **evaluation)
    steps = lines(run / "steps.jsonl")
    assert [s["step"] for s in steps] == list(range(16))
    before, after = load_run(run).results[0], load_run(run).results[-1]
    assert (before.step, after.step) == (0, 16)
    for k in (1, 16):
        old, new = (pass_at_k(r.correct, r.samples, k).mean() for r in (before, after))
        assert new > old, f"Pass@{k} of held-out prompts"
