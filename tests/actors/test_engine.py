"""A real vLLM engine cuts what outlives its limit, and what it cut is a whole completion but for its end."""

import asyncio
from typing import Any

import numpy as np
import pytest

from common.config import Config
from common.load import load
from common.prompts import load_tokenizer, render
from common.types import Completion, Tokens


@pytest.mark.system
@pytest.mark.timeout(240)
def test_a_completion_that_outlives_its_limit_is_cut_and_counted() -> None:
    from actors.engine import Engine

    config = load("tiny", ["rollout.time_limit_s=600"])
    prompt = render(load_tokenizer(config.model.path), "57+68=?", config.data)

    async def run() -> None:
        engine = Engine(config)
        try:
            await engine.label(3)
            whole = await engine.generate(prompt, 8, seed=1, temperature=1.0)
            assert engine.cut == 0
            short = await _stopped_midway(engine, config, prompt)
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


async def _stopped_midway(engine: Any, config: Config, prompt: Tokens) -> list[Completion]:
    """The answer of an engine that stands still from the completions' first tokens on until their limit is over; asked
    for again when a busy machine noticed the first tokens only after the last."""
    hasty = config.rollout.model_copy(update={"time_limit_s": 3.0})
    engine._config = config.model_copy(update={"rollout": hasty})
    while True:
        answer = asyncio.create_task(engine.generate(prompt, 8, seed=1, temperature=1.0))
        while engine.load.running < 8 and not answer.done():
            await asyncio.sleep(0)
        await engine._llm.pause_generation(mode="keep", clear_cache=False)
        completions = await answer
        if engine.cut:
            return completions
        await engine._llm.resume_generation()
