"""The real stack end to end, in one run from which most promises are read: vLLM generates, Serve hosts, Redis
queues, DeepSpeed learns, weights come back over Gloo.

The run is stopped by SIGTERM in the middle, and resumed.

It has two data sources, one of them with a reward of whole groups, Phase B in rounds that stop at a hit and
evaluations while it trains, and it keeps its best weights.
"""

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.load import load
from hora_rl.deploy.cli import app
from hora_rl.deploy.machine.redis_server import RedisServer
from hora_rl.evaluation.report.runs_report import write_report
from hora_rl.evaluation.results import Result, read_result
from tests.support.groups import rollouts_held
from tests.support.jsonl import lines
from tests.support.pages import ROOT
from tests.system.conftest import LiveRun

STEPS, PROMPTS, GROUP = 6, 8, 6
# Sums in the demo's own form, and longer ones twice as seldom, of which brevity is rewarded too.
CONFIG = """
model: {path: deploy/demo/model, dtype: float32}
data:
  sources:
    short: {path: "arithmetic:1-2", weight: 2, system: null, limit: 20}
    long:
      path: "arithmetic:3-4"
      system: null
      reward: {weights: {accuracy: 1.0, "own_ranks:shortest[is]": 0.1, "own_ranks:shortest[of]": 0.0}}
rollout:
  {prompts_per_batch: 8, group_size: 6, pre_rollouts: 2, shards: 2, temperature: 1.0, max_prompt_tokens: 32,
   max_response_tokens: 128}
allocation: {warmup: {cycles: 1, format_reward: 0.1}, rounds: 4, stop: hit}
weights: {transport: gloo}
learner:
  {tokens_per_microbatch: 8192, checkpoint_every: 2, keep_best: pass@4,
   optimizer: {learning_rate: 0.0001, schedule: constant}}
evaluation: {path: arithmetic, every: 2, prompts: 4, samples: 4, k: [1, 4]}
"""
TOOLS = {".git", ".venv", ".venv-verifiers", ".hypothesis", ".pytest_cache", "__pycache__", "runs"}
"""Folders of a checkout that tools write to, and the user's own runs."""
REWARDS = """
def shortest(answers):
    lengths = [a.tokens for a in answers]
    return [{"of": len(lengths), "is": float(n == min(lengths))} for n in lengths]
"""

pytestmark = [pytest.mark.system, pytest.mark.core, pytest.mark.timeout(1200)]


def checkout() -> set[Path]:
    found = set()
    for folder, inner, names in os.walk(ROOT):
        inner[:] = [name for name in inner if name not in TOOLS and not name.endswith("_cache")]
        found |= {Path(folder) / name for name in names}
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """(The run's folder, what it printed when it was stopped)."""
    folder = tmp_path_factory.mktemp("run")
    before, files = {p.pid for p in psutil.process_iter()}, checkout()
    (folder / "own_ranks.py").write_text(REWARDS)
    (folder / "two.yaml").write_text(CONFIG)
    with LiveRun(folder, STEPS, "two.yaml", cwd=folder) as live:
        live.until(2)
        live.signal_group(signal.SIGTERM)
        said = live.stopped()
        live.start("--resume")
        live.finish()
        new = [p for p in psutil.process_iter(["cmdline"]) if p.pid not in before]
        mine = [p for p in new if str(folder) in " ".join(p.info["cmdline"] or [])]
        assert not mine, "a process of the run is still there"
        assert checkout() <= files, "a run writes into its own folder alone"
        yield live.run, said


@pytest.fixture(scope="module")
def run(finished: tuple[Path, str]) -> Path:
    return finished[0]


@pytest.fixture(scope="module")
def results(run: Path) -> dict[int, Result]:
    """Evaluations by step."""
    return {r.step: r for r in map(read_result, (run / "evaluation").glob("*-step*.json"))}


def test_a_stopped_run_leaves_nothing_and_says_how_it_is_resumed(finished: tuple[Path, str]) -> None:
    _, said = finished
    assert "resume with: hora run" in said
    assert "SIGTERM received" not in said, "a stack of C++"


def test_every_batch_trains_its_whole_budget_exactly_once(run: Path) -> None:
    groups = lines(run / "groups.jsonl")
    assert len({g["group_id"] for g in groups}) == len(groups) == STEPS * PROMPTS
    for batch in range(STEPS):
        assert sum(g["size"] for g in groups if g["batch"] == batch) == PROMPTS * GROUP


def test_rounds_spend_phase_b_exactly_and_stop_at_a_hit(run: Path) -> None:
    groups = [g for g in lines(run / "groups.jsonl") if g["rule"] == "hit_utility"]
    assert max(len(g["rounds"]) for g in groups) == 4
    assert all(sum(g["rounds"]) == g["extra"] for g in groups)
    assert all(g["successes"] + sum(g["round_hits"]) == g["hits"] for g in groups)


def test_every_token_is_from_a_version_the_staleness_bound_allows(run: Path) -> None:
    for g in lines(run / "groups.jsonl"):
        assert g["step"] - g["batch"] <= 1
        assert g["version_min"] >= g["batch"] - 1


def test_weights_change_in_the_generator_and_stay_those_of_the_learner(run: Path) -> None:
    steps = lines(run / "steps.jsonl")
    assert max(g["version_max"] for g in lines(run / "groups.jsonl")) >= 1
    assert [s["step"] for s in steps] == list(range(STEPS))
    # float32 on both sides: the same tokens on the same version have the same log-probs.
    assert all(s["drift"] < 1e-4 for s in steps if "drift" in s)
    assert any(s["grad_norm"] > 0 for s in steps)
    assert any("generators/idle" in s for s in steps)


def test_the_audit_finds_nothing(run: Path) -> None:
    done = CliRunner().invoke(app, ["audit", str(run)])
    assert done.exit_code == 0, done.output
    assert "none missing, none doubled" in done.output


def test_the_model_differs_from_the_initial_one_and_the_last_checkpoint_is_exported_as_it(
    run: Path, tmp_path: Path
) -> None:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    trained = AutoModelForCausalLM.from_pretrained(run / "model")
    AutoTokenizer.from_pretrained(run / "model")
    initial = AutoModelForCausalLM.from_pretrained(load("tiny").model.path)
    pairs = zip(trained.parameters(), initial.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)
    done = CliRunner().invoke(app, ["export", str(run), str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert f"the model after step {STEPS}" in done.output
    own, exported = (load_file(f / "model.safetensors") for f in (run / "model", tmp_path / "out"))
    assert own.keys() == exported.keys()
    assert all(torch.equal(own[name], exported[name]) for name in own)


def test_nothing_is_left_in_the_queue_and_each_shard_kept_its_first_plan(run: Path) -> None:
    with RedisServer(run / "redis") as server:
        client, keys = connect(server.url), Keys("live")
        assert client.xlen(keys.groups) == client.xlen(keys.dead) == 0
        assert client.hlen(keys.shards) == STEPS * 2
        assert client.hlen(keys.ledger) == STEPS
        reports = {name: json.loads(text) for name, text in client.hgetall(keys.shards).items()}
        plans = {name: json.loads(text) for name, text in client.hgetall(keys.plans).items()}
        assert {n: plans[n]["successes"] for n in reports} == {n: r["successes"] for n, r in reports.items()}
        assert rollouts_held(client, "live") == set()


def test_the_run_is_evaluated_before_after_and_between(results: dict[int, Result]) -> None:
    assert {0, STEPS} < set(results)
    assert {r.versions[0] >= step for step, r in results.items()} == {True}
    assert results[0].versions == [0, 0]
    assert results[STEPS].versions == [STEPS, STEPS]
    assert all(r.samples == 4 and len(r.correct) == 4 for r in results.values())


def test_the_best_weights_are_a_model_with_step_and_metric(run: Path, results: dict[int, Result]) -> None:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    best = json.loads((run / "best" / "best.json").read_text())
    values = {step: next(e.value for e in r.estimates() if e.k == 4) for step, r in results.items()}
    assert best["value"] == max(values.values())
    assert best["step"] == min(s for s, v in values.items() if v == best["value"])
    AutoModelForCausalLM.from_pretrained(run / "best")
    own, kept = (load_file(run / f / "model.safetensors") for f in ("model", "best"))
    assert all(torch.equal(own[n], kept[n]) for n in own) == (best["step"] == STEPS)
    assert not (run / "candidates").exists()


def test_the_report_has_the_curve_and_each_result_its_weights(
    run: Path, results: dict[int, Result], tmp_path: Path
) -> None:
    assert "Pass@K during training: live" in write_report([run], tmp_path).read_text()
    for r in results.values():
        assert r.sampled in (run / "evaluation" / f"{r.benchmark}-step{r.step}.md").read_text()


def test_a_batch_holds_the_sources_in_proportion_and_each_has_its_own_epochs(run: Path) -> None:
    groups = lines(run / "groups.jsonl")
    used = Counter(g["source"] for g in groups)
    assert used == {"short": STEPS * PROMPTS * 2 // 3, "long": STEPS * PROMPTS // 3}
    epochs = {s: {g["epoch"] for g in groups if g["source"] == s} for s in used}
    assert epochs["long"] == {0}
    assert epochs["short"] > {0}  # 20 rows, 32 places


def test_each_source_is_trained_on_its_own_rewards(run: Path) -> None:
    rewards = {"short": {"format", "accuracy"}}
    rewards["long"] = {"accuracy", "own_ranks:shortest[is]", "own_ranks:shortest[of]"}
    for g in lines(run / "groups.jsonl"):
        assert set(g["rewards"]) == rewards[g["source"]]
        if g["source"] == "long":  # every rollout was ranked among all of its group
            assert g["rewards"]["own_ranks:shortest[of]"] == g["size"]
            assert 0 < g["rewards"]["own_ranks:shortest[is]"] <= 1
    last = lines(run / "steps.jsonl")[-1]
    assert {"source/short/success", "source/long/reward", "reward/own_ranks:shortest[is]"} <= last.keys()
