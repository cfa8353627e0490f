"""A real vLLM engine cuts what outlives its limit, and what it cut is a whole completion but for its end."""

import asyncio
import time
from typing import Any

import numpy as np
import pytest

from common.load import load
from common.prompts import load_tokenizer, render
from common.types import Completion, Tokens


@pytest.mark.system
@pytest.mark.timeout(240)
def test_a_completion_that_outlives_its_limit_is_cut_and_counted() -> None:
    from actors.generator.vllm_engine import Engine

    config = load("tiny", ["rollout.time_limit_s=600"])
    prompt = render(load_tokenizer(config.model.path), "57+68=?", config.data)

    async def run() -> None:
        engine = Engine(config)
        try:
            await engine.label(3)
            whole = await engine.generate(prompt, 8, seed=1, temperature=1.0)
            assert engine.cut == 0
            short = await _hurried(engine, prompt)
            cut = [s for s, w in zip(short, whole, strict=True) if len(s.tokens) < len(w.tokens)]
            assert engine.cut == len(cut) > 0
            assert {s.finish_reason for s in cut} == {"length"}
            for s, w in zip(short, whole, strict=True):
                n = len(s.tokens)
                assert np.array_equal(s.tokens, w.tokens[:n])  # the same seed: the same beginning
                assert len(s.logprobs) == n > 0
                assert [(v.version, v.start, v.end) for v in s.spans] == [(3, 0, n)]
        finally:
            engine.shutdown()

    asyncio.run(run())


async def _hurried(engine: Any, prompt: Tokens) -> list[Completion]:
    """The answer within a limit that some completions outlive; asked for again when a busy machine looked too late."""
    engine._clock.limit_s = 0.04
    while True:
        completions = await engine.generate(prompt, 8, seed=1, temperature=1.0)
        if engine.cut:
            return completions


@pytest.mark.system
@pytest.mark.timeout(240)
def test_a_pause_does_not_count_and_an_engine_that_stands_still_is_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from actors.generator import vllm_engine as module

    monkeypatch.setattr(module, "STILL_S", 1.0)
    config = load("tiny", ["rollout.time_limit_s=1"])
    prompt = render(load_tokenizer(config.model.path), "57+68=?", config.data)

    async def run() -> None:
        engine = module.Engine(config)
        try:
            await engine.label(3)
            answer = asyncio.create_task(engine.generate(prompt, 8, seed=1, temperature=1.0))
            while not engine.load.running:
                await asyncio.sleep(0)
            engine.paused_since = time.monotonic()
            await engine._llm.pause_generation(mode="keep", clear_cache=False)
            await asyncio.sleep(2.5)
            await engine.check_health()
            engine.paused_since = None  # as if nobody had paused it
            await asyncio.sleep(2.5)
            with pytest.raises(RuntimeError, match=r"no sequence got a token for [2-9] s"):
                await engine.check_health()
            await engine._llm.resume_generation()
            assert {c.finish_reason for c in await answer} == {"stop"}
            assert engine.cut == 0
            await asyncio.sleep(0.6)
            await engine.check_health()
        finally:
            engine.shutdown()

    asyncio.run(run())
