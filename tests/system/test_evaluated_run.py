"""One whole run of two data sources with a reward of whole groups, evaluated while it trains, that keeps its
best weights."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from deploy.runs.audit_run import audit_run
from evaluation.report.runs_report import write_report
from evaluation.results import Result, read_result
from tests.support.jsonl import lines

STEPS, EVERY, PROMPTS, GROUP = 6, 2, 8, 6

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]


REWARDS = """
def shortest(answers):
    lengths = [a.tokens for a in answers]
    return [{"of": len(lengths), "is": float(n == min(lengths))} for n in lengths]
"""


def configuration(folder: Path) -> str:
    """Sums in the demo's own form, and longer ones twice as seldom, of which brevity is rewarded too."""
    return yaml.safe_dump(
        {
            "run": {"name": "evaluated", "folder": str(folder / "runs")},
            "model": {"path": "deploy/demo/model", "dtype": "float32"},
            "data": {
                "sources": {
                    "short": {"path": "arithmetic:1-2", "weight": 2, "system": None, "limit": 20},
                    "long": {
                        "path": "arithmetic:3-4",
                        "system": None,
                        "reward": {
                            "weights": {
                                "accuracy": 1.0,
                                "own_ranks:shortest[is]": 0.1,
                                "own_ranks:shortest[of]": 0.0,
                            }
                        },
                    },
                }
            },
            "rollout": {
                "prompts_per_batch": PROMPTS,
                "group_size": GROUP,
                "pre_rollouts": 2,
                "shards": 2,
                "temperature": 1.0,
                "max_prompt_tokens": 32,
                "max_response_tokens": 128,
            },
            "allocation": {"warmup": {"enabled": False}},
            "learner": {
                "steps": STEPS,
                "tokens_per_microbatch": 8192,
                "checkpoint_every": 2,
                "keep_best": "pass@4",
                "optimizer": {"learning_rate": 1e-4, "schedule": "constant"},
            },
            "evaluation": {
                "path": "arithmetic",
                "source": "short",
                "every": EVERY,
                "prompts": 4,
                "samples": 4,
                "k": [1, 4],
            },
            "telemetry": {"http_port": 0},
        }
    )


def hora(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    (folder / "own_ranks.py").write_text(REWARDS)
    (folder / "two.yaml").write_text(configuration(folder))
    return subprocess.run(
        [str(Path(sys.executable).with_name("hora")), command, "two.yaml"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=1100,
        env={**os.environ, "COLUMNS": "200"},
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("run")
    ended = hora(folder, "run")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder / "runs" / "evaluated", ended.stdout


def results(run: Path) -> dict[int, Result]:
    found = map(read_result, (run / "evaluation").glob("*-step*.json"))
    return {r.step: r for r in found}


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


def test_a_batch_holds_the_sources_in_proportion_and_each_has_its_own_epochs(
    finished: tuple[Path, str],
) -> None:
    groups = lines(finished[0] / "groups.jsonl")
    used = Counter(g["source"] for g in groups)
    assert used == {"short": STEPS * PROMPTS * 2 // 3, "long": STEPS * PROMPTS // 3}
    epochs = {s: {g["epoch"] for g in groups if g["source"] == s} for s in used}
    assert epochs["long"] == {0}
    assert epochs["short"] > {0}  # 20 rows, 32 places


def test_each_source_is_trained_on_its_own_rewards(finished: tuple[Path, str]) -> None:
    rewards = {"short": {"format", "accuracy"}}
    rewards["long"] = {"accuracy", "own_ranks:shortest[is]", "own_ranks:shortest[of]"}
    for g in lines(finished[0] / "groups.jsonl"):
        assert set(g["rewards"]) == rewards[g["source"]]
        if g["source"] == "long":  # every rollout was ranked among all of its group
            assert g["rewards"]["own_ranks:shortest[of]"] == g["size"]
            assert 0 < g["rewards"]["own_ranks:shortest[is]"] <= 1
    last = lines(finished[0] / "steps.jsonl")[-1]
    assert {"source/short/success", "source/long/reward", "reward/own_ranks:shortest[is]"} <= last.keys()


def test_the_report_shows_each_source(finished: tuple[Path, str], tmp_path: Path) -> None:
    page = write_report([finished[0]], tmp_path).read_text()
    assert "Data sources: evaluated" in page
    assert "<td>long</td><td>16</td>" in page


def test_check_counts_what_a_batch_takes_of_each_source(tmp_path: Path) -> None:
    said = hora(tmp_path, "check")
    assert said.returncode == 0, said.stdout + said.stderr
    assert "short: 20 prompts of " in said.stdout
    assert "67%: 5 to 6 of the 8 prompts of a batch" in said.stdout
    assert "33%: 2 to 3 of the 8 prompts of a batch" in said.stdout
    assert "evaluation: every 2 steps 16 completions" in said.stdout
    assert said.stdout.count("prompt: ") == 2
