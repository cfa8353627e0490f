"""`hora run` on a machine with one card, which generator and learner share or use in turn.

Without a card Ray is told of one: placement and order are real, and everything computes on the CPU. On a real
one `benchmarks/gpu_acceptance.py` lets them take turns.
"""

import asyncio
import sys
from pathlib import Path

import pytest
import torch

from hora_rl.common.data.prompts import load_tokenizer, render
from hora_rl.common.load import ROOT, load
from hora_rl.deploy.runs.ended_run import audit_run
from hora_rl.evaluation.rollout_table import read_rollouts
from tests.support.jsonl import lines
from tests.support.programs import run_well
from tests.system.conftest import SMALL

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]
TURNS = {"generator.sleep": "step", "rollout.max_staleness": 0, "model.dtype": "bfloat16"}
CACHE_GIB = 2.0
needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs an NVIDIA GPU, this machine has none"
)

RUN = """
import sys
import ray

init = ray.init
ray.init = lambda **options: init(num_gpus=1, **options)
from hora_rl.deploy.launch.local import run_local
from hora_rl.deploy.checks import run_checks as checks
from hora_rl.deploy.checks import machine

machine.gpus = lambda: ["Told of, 81920 MiB"]
checks.CHECKS = tuple(c for c in checks.CHECKS if c is not machine.versions)  # the CPU build of vLLM is here
run_local("tiny", sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("engines", [1, 2])
def test_learner_and_engines_share_one_card(tmp_path: Path, engines: int) -> None:
    settings = {**SMALL, "run.folder": tmp_path / "runs", "run.name": "one", "learner.steps": 3}
    words = [f"{key}={value}" for key, value in settings.items()]
    if engines > 1:
        words.append(f"generator.replicas={engines}")
    ran = run_well(sys.executable, "-c", RUN, *words, limit_s=800, COLUMNS="200", PYTHONPATH=str(ROOT))
    share = 0.5 / engines
    assert f"chosen for Told of: generator.gpus = {share:g}, generator.kv_cache_gib = " in ran.stdout
    assert "MPS is off (nvidia-cuda-mps-control is not installed)" in ran.stdout
    run = tmp_path / "runs" / "one"
    config = load(str(run / "config.yaml"))
    assert (config.generator.gpus, config.learner.gpus) == (share, 0.5)
    steps = lines(run / "steps.jsonl")
    assert [s["step"] for s in steps] == [0, 1, 2]
    assert max(s["drift"] for s in steps if "drift" in s) < 0.02
    replicas = read_rollouts(run, columns=["replica"])["replica"]
    assert len(set(replicas.to_pylist())) == engines
    assert audit_run(run)


@pytest.mark.gpu
@needs_gpu
def test_an_engine_that_sleeps_frees_its_memory_and_wakes_with_its_weights() -> None:
    from hora_rl.actors.generator.vllm_engine import Engine

    room = {"generator.kv_cache_gib": CACHE_GIB, "generator.memory_utilization": 0.3}
    config = load("tiny", [f"{key}={value}" for key, value in {**TURNS, **room}.items()])
    prompt = render(load_tokenizer(config.model.path), "57+68=?", config.data)

    async def run() -> None:
        engine = Engine(config)
        try:
            await engine.begin()
            before = [c.tokens.tolist() for c in await engine.generate(prompt, 4, seed=1, temperature=1.0)]
            checksum, free = await engine.checksum(), torch.cuda.mem_get_info()[0]
            await engine.sleep()
            assert torch.cuda.mem_get_info()[0] - free > 0.95 * CACHE_GIB * 2**30
            await engine.wake()
            assert await engine.checksum() == checksum
            after = [c.tokens.tolist() for c in await engine.generate(prompt, 4, seed=1, temperature=1.0)]
            assert after == before
        finally:
            engine.shutdown()

    asyncio.run(run())
