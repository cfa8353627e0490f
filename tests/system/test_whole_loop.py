"""The real stack end to end: vLLM generates, Serve hosts, Redis queues, DeepSpeed learns, weights come
back."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis
from typer.testing import CliRunner

from common.keys import Keys
from common.load import load
from common.redis import connect
from deploy.cli import app
from deploy.launch.redis_server import RedisServer
from tests.support.held import rollouts_held
from tests.support.jsonl import lines
from tests.support.pages import ROOT

STEPS, PROMPTS, GROUP, PRE = 4, 8, 6, 2
TOOLS = {".git", ".venv", ".venv-verifiers", ".hypothesis", ".pytest_cache", "__pycache__", "runs"}
"""Folders of a checkout that tools write to, and the user's own runs."""

pytestmark = [pytest.mark.system, pytest.mark.core, pytest.mark.timeout(1200)]


def hora(tmp_path: Path, *more: str, command: str = "run") -> subprocess.CompletedProcess[str]:
    settings = {
        "run.folder": tmp_path / "runs",
        "run.name": "loop",
        "rollout.prompts_per_batch": PROMPTS,
        "rollout.group_size": GROUP,
        "rollout.pre_rollouts": PRE,
        "rollout.shards": 2,
        "learner.steps": STEPS,
        "learner.checkpoint_every": 2,
        "evaluation.prompts": 4,
        "evaluation.samples": 4,
        "evaluation.k": "[1, 4]",
        "telemetry.http_port": 0,
        "allocation.warmup.cycles": 1,
        "allocation.warmup.format_reward": 0.1,
    }
    arguments = [part for key, value in settings.items() for part in ("-s", f"{key}={value}")]
    ask = [str(Path(sys.executable).with_name("hora")), command, "tiny", *arguments, *more]
    return subprocess.run(
        ask, cwd=ROOT, capture_output=True, text=True, timeout=1100, env={**os.environ, "COLUMNS": "120"}
    )


def checkout() -> set[Path]:
    """The files of the checkout, in which the run is started."""
    found = set()
    for folder, inner, names in os.walk(ROOT):
        inner[:] = [name for name in inner if name not in TOOLS and not name.endswith("_cache")]
        found |= {Path(folder) / name for name in names}
    return found


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis of the user's, which the run over Gloo names."""
    with RedisServer(tmp_path_factory.mktemp("named")) as server:
        yield server


# Other whole runs cover files and a staleness of 0 at each change: `test_evaluated_run` and `test_sleep`.
SLOW = [pytest.param((0, "file"), marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=[(1, "gloo"), *SLOW], ids=str)
def finished(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, named: RedisServer
) -> tuple[int, Path]:
    folder = tmp_path_factory.mktemp("run")
    before, files = {p.pid for p in psutil.process_iter()}, checkout()
    staleness, transport = request.param
    more = ["-s", f"rollout.max_staleness={staleness}", "-s", f"weights.transport={transport}"]
    if transport == "gloo":
        more += ["-s", f"queue.url={named.url}"]
    result = hora(folder, *more)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Pass@1" in result.stdout
    mine = [
        p
        for p in psutil.process_iter(["cmdline"])
        if p.pid not in before and str(folder) in " ".join(p.info["cmdline"] or [])
    ]
    assert not mine, "a process of the run is still there"
    assert checkout() == files, "a run writes into its own folder alone"
    return staleness, folder / "runs" / "loop"


def test_every_batch_trains_its_whole_budget_exactly_once(finished: tuple[int, Path]) -> None:
    _, run = finished
    groups = lines(run / "groups.jsonl")
    assert len({g["group_id"] for g in groups}) == len(groups) == STEPS * PROMPTS
    for batch in range(STEPS):
        assert sum(g["size"] for g in groups if g["batch"] == batch) == PROMPTS * GROUP


def test_every_token_is_from_a_version_the_staleness_bound_allows(finished: tuple[int, Path]) -> None:
    staleness, run = finished
    for g in lines(run / "groups.jsonl"):
        assert g["step"] - g["batch"] <= staleness
        assert g["version_min"] >= g["batch"] - staleness
        if staleness == 0:
            assert g["version_min"] == g["version_max"] == g["batch"]


def test_weights_change_in_the_generator_and_stay_those_of_the_learner(finished: tuple[int, Path]) -> None:
    _, run = finished
    steps = lines(run / "steps.jsonl")
    assert max(g["version_max"] for g in lines(run / "groups.jsonl")) >= 1
    assert [s["step"] for s in steps] == list(range(STEPS))
    # float32 on both sides: the same tokens on the same version have the same log-probs.
    assert all(s["drift"] < 1e-4 for s in steps if "drift" in s)
    assert any(s["grad_norm"] > 0 for s in steps)


def test_what_the_generators_idled_is_recorded_for_views_and_summary(finished: tuple[int, Path]) -> None:
    _, run = finished
    idle = [s["generators/idle"] for s in lines(run / "steps.jsonl") if "generators/idle" in s]
    assert idle
    assert all(0.0 <= share <= 1.0 for share in idle)
    assert json.loads((run / "summary.json").read_text())["balance"] == "", "its steps are too few"


def test_the_audit_finds_nothing(finished: tuple[int, Path]) -> None:
    done = CliRunner().invoke(app, ["audit", str(finished[1])])
    assert done.exit_code == 0, done.output
    assert "none missing, none doubled" in done.output


def test_the_model_loads_and_differs_from_the_initial_one(finished: tuple[int, Path]) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    _, run = finished
    trained = AutoModelForCausalLM.from_pretrained(run / "model")
    AutoTokenizer.from_pretrained(run / "model")
    initial = AutoModelForCausalLM.from_pretrained(load("tiny").model.path)
    pairs = zip(trained.parameters(), initial.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)


def test_the_last_checkpoint_is_exported_as_the_runs_own_model(
    finished: tuple[int, Path], tmp_path: Path
) -> None:
    import torch
    from safetensors.torch import load_file

    _, run = finished
    done = CliRunner().invoke(app, ["export", str(run), str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "the model after step 4" in done.output
    own, exported = (load_file(f / "model.safetensors") for f in (run / "model", tmp_path / "out"))
    assert own.keys() == exported.keys()
    assert all(torch.equal(own[name], exported[name]) for name in own)


def held(client: redis.Redis) -> None:
    """What a finished run leaves in Redis."""
    keys = Keys("loop")
    assert client.xlen(keys.groups) == 0
    assert client.hlen(keys.shards) == STEPS * 2
    assert client.hlen(keys.ledger) == STEPS
    assert client.xlen(keys.dead) == 0
    reports = {name: json.loads(text) for name, text in client.hgetall(keys.shards).items()}
    plans = {name: json.loads(text) for name, text in client.hgetall(keys.plans).items()}
    assert {n: (p["successes"], p["extra"]) for n, p in plans.items()} == {
        n: (r["successes"], r["extra"]) for n, r in reports.items()
    }
    assert rollouts_held(client, "loop") == set()


def test_nothing_is_left_in_the_queue_and_each_shard_kept_its_first_plan(
    finished: tuple[int, Path], named: RedisServer
) -> None:
    _, run = finished
    if load(str(run / "config.yaml")).queue.url is not None:
        assert not (run / "redis").exists(), "a Redis of the run's own beside the one that is named"
        held(connect(named.url))
        return
    with RedisServer(run / "redis") as server:
        held(connect(server.url))


def test_a_named_redis_that_holds_a_run_of_this_name_or_is_away_is_refused_in_one_line(
    tmp_path: Path,
) -> None:
    elsewhere, keys = tmp_path / "elsewhere", Keys("loop")
    with RedisServer(tmp_path / "mine") as server:
        client, url = connect(server.url), ("-s", f"queue.url={server.url}")
        assert hora(elsewhere, *url, "--all", command="check").returncode == 0
        client.hset(keys.state, mapping={"step": 2, "version": 2})
        again = hora(elsewhere, *url)
        assert again.returncode == 1
        assert "holds a run 'loop' already" in again.stderr
        assert len(again.stderr.strip().splitlines()) == 1
        assert not elsewhere.exists()
        assert client.hget(keys.state, "step") == b"2"
    for command in ("check", "run"):
        away = hora(elsewhere, *url, command=command)
        assert away.returncode == 1
        assert "no Redis answers at" in away.stdout + away.stderr
