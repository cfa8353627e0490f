"""A real vLLM engine cuts what outlives its limit, and what it cut is a whole completion but for its end."""

import asyncio
from typing import Any

import numpy as np
import pytest

from common.config import Config
from common.load import load
from common.types import Completion, Tokens


@pytest.mark.system
@pytest.mark.timeout(240)
def test_a_completion_that_outlives_its_limit_is_cut_and_counted() -> None:
    from actors.engine import Engine

    config = load("tiny", ["rollout.time_limit_s=600"])
    prompt = np.arange(10, 20, dtype=np.int32)

    async def run() -> None:
        engine = Engine(config)
        try:
            await engine.label(3)
            whole = await engine.generate(prompt, 8, seed=1, temperature=1.0)
            assert engine.cut == 0
            short = await _first_answer(engine, config, prompt)
            cut = [s for s, w in zip(short, whole, strict=True) if len(s.tokens) < len(w.tokens)]
            assert cut
            assert engine.cut >= len(cut)
            for s, w in zip(short, whole, strict=True):
                n = len(s.tokens)
                assert np.array_equal(s.tokens, w.tokens[:n])  # the same seed: the same beginning
                assert len(s.logprobs) == n
                assert [(v.version, v.start, v.end) for v in s.spans] == [(3, 0, n)]
            assert {s.finish_reason for s in cut} == {"length"}
        finally:
            engine.shutdown()

    asyncio.run(run())


async def _first_answer(engine: Any, config: Config, prompt: Tokens) -> list[Completion]:
    """Under the shortest limit, doubled from try to try, that lets every completion begin."""
    limit = 0.02
    while True:
        hasty = config.rollout.model_copy(update={"time_limit_s": limit})
        engine._config = config.model_copy(update={"rollout": hasty})
        try:
            return await engine.generate(prompt, 8, seed=1, temperature=1.0)
        except RuntimeError:  # some had no token yet: that is no answer, and is asked for again
            limit *= 2
