"""`deploy/hora-2gpu.yaml` on two GPUs that Ray is told of, computed on the CPU, and runs over real cards:
`make test-gpu`. Those are skipped with the reason where there are not two."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import try_to_load_from_cache

from hora_rl.common.load import ROOT, load
from hora_rl.deploy.runs.ended_run import audit_run
from tests.support.cluster import Cluster
from tests.support.jsonl import lines
from tests.support.ports import until
from tests.support.programs import run_well
from tests.system.conftest import LiveRun

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]
CARDS = torch.cuda.device_count()
needs_two = pytest.mark.skipif(CARDS < 2, reason=f"needs two NVIDIA GPUs, this machine has {CARDS}")
needs_three = pytest.mark.skipif(CARDS < 3, reason=f"needs three NVIDIA GPUs, this machine has {CARDS}")
STEPS = 5
PARALLEL = {"weights.transport": "nccl", "generator.tensor_parallel": 2, "learner.workers": 1}
# A new engine on the written model: what every replica of its version should hold.
FRESH = """
import asyncio, sys
from hora_rl.actors.generator.vllm_engine import Engine
from hora_rl.common.load import load

async def digest():
    engine = Engine(load(sys.argv[1], [f"model.path={sys.argv[2]}"]))
    found = await engine.checksum()
    engine.shutdown()
    return found

print("checksum", asyncio.run(digest()))
"""


def model_at_hand(args: dict[str, Any]) -> bool:
    """Whether the file's own model was fetched to this machine before."""
    return isinstance(try_to_load_from_cache(args["model"]["path"], "config.json"), str)


def trained(cluster: Cluster, transport: str) -> str:
    """Train five steps of the file over `transport` on a cluster that is up: clean, drift below 0.02, and
    the replica's checksum that of the written model. The name of the model that was trained: the file's own
    with its prompts, or the demo's where that is not at hand."""
    file = yaml.safe_load((ROOT / "deploy" / "hora-2gpu.yaml").read_text())
    file["http_options"]["port"] = cluster.http
    args = file["applications"][0]["args"]
    if not model_at_hand(args):
        demo = load("tiny").model_dump(include={"model": {"path"}, "data": {"path", "system"}})
        args["model"]["path"], args["data"] = str(ROOT / demo["model"]["path"]), demo["data"]
        args["rollout"] |= {"max_prompt_tokens": 32, "max_response_tokens": 128}
    if not torch.cuda.is_available():
        args["model"]["dtype"] = "float32"
        args["generator"]["enforce_eager"] = True
    args["run"] |= {"name": "elastic", "folder": str(cluster.folder / "runs")}
    args["rollout"] |= {"prompts_per_batch": 8, "group_size": 8, "pre_rollouts": 2, "shards": 2}
    args["learner"] |= {"steps": STEPS}
    args["queue"], args["weights"] = {}, {"transport": transport}
    cluster.serve(file)
    cluster.train()
    assert cluster.learner is not None
    log = cluster.folder / "train.log"
    assert cluster.learner.wait(900) == 0, log.read_text()[-3000:]
    _check(cluster)
    return str(args["model"]["path"])


def _check(cluster: Cluster) -> None:
    steps = lines(cluster.run / "steps.jsonl")
    assert [s["step"] for s in steps] == list(range(STEPS))
    measured = [s["drift"] for s in steps[1:] if "drift" in s]
    assert measured, "on weights that an update brought"
    assert max(measured) < 0.02
    cluster.audit()
    held = _held(cluster)
    cluster.shut_application()
    assert _fresh(cluster).startswith(held), "the replica holds what was written"


def _held(cluster: Cluster) -> str:
    """The beginning of the replica's checksum of the last version."""

    def checksum() -> str:
        [state] = [part.state for part in cluster.alive("generator")] or [{}]
        return str(state["checksum"]) if state.get("version") == STEPS else ""

    return str(until(checksum, limit_s=60, every_s=0.5))


def _fresh(cluster: Cluster) -> str:
    command = [sys.executable, "-c", FRESH, str(cluster.run / "config.yaml"), str(cluster.run / "model")]
    out = run_well(*command, cwd=ROOT, limit_s=300).stdout
    [said] = [line for line in out.splitlines() if line.startswith("checksum ")]
    return said.removeprefix("checksum ")


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the cards are real")
@pytest.mark.parametrize("transport", ["file", "gloo"])
def test_the_deployment_for_two_gpus_trains_on_cards_ray_was_told_of(tmp_path: Path, transport: str) -> None:
    cluster = Cluster(tmp_path)
    try:
        cluster.start(gpus=2)
        print(f"trained over {transport}: {trained(cluster, transport)}")
    finally:
        cluster.end()


@pytest.mark.gpu
@needs_two
@pytest.mark.parametrize("transport", ["file", "nccl"])
def test_on_two_gpus_it_trains_with_low_drift_and_equal_checksums(cluster: Cluster, transport: str) -> None:
    """With the file's own model where it was fetched before, else with the demo's."""
    print(f"trained over {transport}: {trained(cluster, transport)}")


@pytest.mark.gpu
@needs_two
@pytest.mark.parametrize(
    "settings",
    [
        {"learner.lora.rank": 8, "weights.transport": "gloo"},
        pytest.param(PARALLEL, marks=needs_three),
    ],
    ids=["lora", "tensor parallel"],
)
def test_generators_and_learner_agree_on_every_version(
    live_run: Callable[..., LiveRun], settings: dict[str, object]
) -> None:
    live = live_run(5, **{"model.dtype": "bfloat16", **settings})
    live.finish(1100.0)
    steps = lines(live.run / "steps.jsonl")
    assert len(steps) == 5
    measured = [s["drift"] for s in steps if "drift" in s]
    assert measured
    assert max(measured) < 0.02
    assert max(s["time/checksum"] for s in steps) < 0.2
    assert audit_run(live.run)
