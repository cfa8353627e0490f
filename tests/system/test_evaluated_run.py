"""One whole run that is evaluated while it trains and keeps its best weights."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.runs.audit_run import audit_run
from evaluation.report.runs_report import write_report
from evaluation.results import Result, read_result

STEPS, EVERY, PROMPTS, GROUP = 6, 2, 8, 6

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]


def hora(folder: Path) -> subprocess.CompletedProcess[str]:
    settings = {
        "run.folder": folder / "runs",
        "run.name": "evaluated",
        "rollout.prompts_per_batch": PROMPTS,
        "rollout.group_size": GROUP,
        "rollout.pre_rollouts": 2,
        "rollout.shards": 2,
        "learner.steps": STEPS,
        "learner.checkpoint_every": 2,
        "learner.keep_best": "pass@4",
        "evaluation.every": EVERY,
        "evaluation.prompts": 4,
        "evaluation.samples": 4,
        "evaluation.k": "[1, 4]",
        "telemetry.http_port": 0,
        "allocation.warmup.enabled": "false",
    }
    arguments = [part for key, value in settings.items() for part in ("-s", f"{key}={value}")]
    command = [str(Path(sys.executable).with_name("hora")), "run", "tiny", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=1100, env={**os.environ, "COLUMNS": "200"}
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("run")
    ended = hora(folder)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder / "runs" / "evaluated", ended.stdout


def results(run: Path) -> dict[int, Result]:
    found = map(read_result, (run / "evaluation").glob("*-step*.json"))
    return {r.step: r for r in found}


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_run_is_evaluated_before_after_and_between(finished: tuple[Path, str]) -> None:
    run, said = finished
    found = results(run)
    assert {0, STEPS} < set(found), said
    assert {r.versions[0] >= step for step, r in found.items()} == {True}
    assert found[0].versions == [0, 0]
    assert found[STEPS].versions == [STEPS, STEPS]
    assert all(r.samples == 4 and len(r.correct) == 4 for r in found.values())


def test_what_is_trained_is_as_exact_as_without(finished: tuple[Path, str]) -> None:
    run, _ = finished
    assert audit_run(run)
    groups = lines(run / "groups.jsonl")
    assert len({g["group_id"] for g in groups}) == len(groups) == STEPS * PROMPTS
    for batch in range(STEPS):
        assert sum(g["size"] for g in groups if g["batch"] == batch) == PROMPTS * GROUP


def test_the_best_weights_are_a_model_with_the_step_and_the_metric(finished: tuple[Path, str]) -> None:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    run, said = finished
    found = results(run)
    best = json.loads((run / "best" / "best.json").read_text())
    values = {step: next(e.value for e in r.estimates() if e.k == 4) for step, r in found.items()}
    assert best["value"] == max(values.values())
    assert best["step"] == min(s for s, v in values.items() if v == best["value"])
    assert f"best evaluation: step {best['step']}, pass@4" in said
    AutoModelForCausalLM.from_pretrained(run / "best")
    own, kept = (load_file(run / f / "model.safetensors") for f in ("model", "best"))
    assert all(torch.equal(own[n], kept[n]) for n in own) == (best["step"] == STEPS)
    assert not (run / "candidates").exists()


def test_the_report_shows_the_curve_and_the_weights(finished: tuple[Path, str], tmp_path: Path) -> None:
    run, _ = finished
    page = write_report([run], tmp_path).read_text()
    assert "Evaluations during training: evaluated" in page
    assert all(r.sampled in page for r in results(run).values())
