"""Generator and learner on one real card that they use in turn: `make test-gpu`. Skipped with the reason
where there is none."""

import asyncio
from pathlib import Path

import pytest
import torch

from hora_rl.common.data.prompts import load_tokenizer, render
from hora_rl.common.load import load
from hora_rl.deploy.runs.audit_run import audit_run
from tests.support.jsonl import lines
from tests.support.small_run import STEPS, hora

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.system,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU, this machine has none"),
]
TURNS = ("generator.sleep=step", "rollout.max_staleness=0", "model.dtype=bfloat16")
CACHE_GIB = 2.0


def test_an_engine_that_sleeps_frees_its_memory_and_wakes_with_its_weights() -> None:
    from hora_rl.actors.generator.vllm_engine import Engine

    room = (f"generator.kv_cache_gib={CACHE_GIB}", "generator.memory_utilization=0.3")
    config = load("tiny", [*TURNS, *room])
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


LORA = "learner.lora.rank=8"


@pytest.mark.skipif(
    torch.cuda.device_count() > 1,
    reason=f"needs one NVIDIA GPU alone, of {torch.cuda.device_count()} each part would get some of its own",
)
@pytest.mark.parametrize("more", [(), (LORA,)], ids=["full", "lora"])
def test_generator_and_learner_take_turns(tmp_path: Path, more: tuple[str, ...]) -> None:
    every = (*TURNS, "evaluation.path=null", *more)
    result = hora(tmp_path, *(part for setting in every for part in ("-s", setting)))
    assert result.returncode == 0, result.stdout + result.stderr
    run = tmp_path / "runs" / "loop"
    steps = lines(run / "steps.jsonl")
    assert len(steps) == STEPS
    assert all(s["time/sleep"] > 0 for s in steps)
    assert max(s["drift"] for s in steps if "drift" in s) < 0.02
    assert audit_run(run)
