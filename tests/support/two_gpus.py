"""`deploy/hora-2gpu.yaml` as it is served and trained, for a few steps."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import torch
import yaml
from huggingface_hub import try_to_load_from_cache

from hora_rl.common.load import ROOT, load
from tests.support.cluster import Cluster
from tests.support.jsonl import lines

STEPS = 5
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
    deadline = time.monotonic() + 60
    while True:
        [state] = [part.state for part in cluster.alive("generator")] or [{}]
        if state.get("version") == STEPS and state["checksum"]:
            return str(state["checksum"])
        assert time.monotonic() < deadline, state
        time.sleep(0.5)


def _fresh(cluster: Cluster) -> str:
    command = [sys.executable, "-c", FRESH, str(cluster.run / "config.yaml"), str(cluster.run / "model")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    [said] = [line for line in done.stdout.splitlines() if line.startswith("checksum ")]
    return said.removeprefix("checksum ")
