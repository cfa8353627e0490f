"""A real vLLM engine cuts what outlives its limit, and what it cut is a whole completion but for its end."""

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.answers import format_reward
from common.config import Config
from common.load import load
from common.prompts import load_tokenizer, render
from common.types import Completion, Tokens
from tests.support.chat_model import TURN_END, chat_tokenizer, save_chat_model


@pytest.mark.system
@pytest.mark.timeout(240)
def test_a_completion_that_outlives_its_limit_is_cut_and_counted() -> None:
    from actors.generator.vllm_engine import Engine

    config = load("tiny", ["rollout.time_limit_s=600"])
    prompt = render(load_tokenizer(config.model.path), "57+68=?", config.data)

    async def run() -> None:
        engine = Engine(config, "a1b2")
        try:
            await engine.label(3)
            began = time.time()
            whole = await engine.generate(prompt, 8, seed=1, temperature=1.0)
            for origin in (c.origin for c in whole):
                assert origin is not None
                assert origin.replica == "a1b2"
                assert began - 0.1 <= origin.queued <= origin.first_token <= origin.done <= time.time() + 0.1
            longest = max(whole, key=lambda c: len(c.tokens))
            assert longest.origin is not None
            assert longest.origin.done >= max(c.origin.done for c in whole if c.origin) - 1e-3
            assert engine.cut == 0
            short = await _hurried(engine, prompt)
            cut = [s for s, w in zip(short, whole, strict=True) if len(s.tokens) < len(w.tokens)]
            assert engine.cut == len(cut) > 0
            assert all(s.origin for s in short)
            assert not engine._sequences._ended  # what nobody takes must not pile up
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
    """The answer within a limit that some completions outlive; asked for again when a busy machine looked too
    late."""
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


@pytest.mark.system
@pytest.mark.timeout(240)
def test_a_base_model_under_a_chat_template_ends_with_its_turn_and_gets_its_format_reward(
    tmp_path: Path,
) -> None:
    from actors.generator.vllm_engine import Engine

    says = "<think>1+1</think>\n<answer>2</answer>"
    limits = {"max_prompt_tokens": 700, "max_response_tokens": 128}
    raw = {
        "model": {"path": str(tmp_path), "dtype": "float32"},
        "data": {"path": "d.jsonl"},
        "rollout": limits,
    }
    config, tokenizer = Config.model_validate(raw), chat_tokenizer()
    prompt = render(tokenizer, "1+1=?", config.data)
    save_chat_model(tmp_path, tokenizer, prompt.tolist(), says)

    async def run() -> list[Completion]:
        engine = Engine(config)
        try:
            await engine.label(0)
            return await engine.generate(prompt, 2, seed=1, temperature=0.01)
        finally:
            engine.shutdown()

    for found in asyncio.run(run()):
        assert (found.text, found.finish_reason) == (says, "stop")
        assert found.tokens[-1] == tokenizer.convert_tokens_to_ids(TURN_END), "the end is trained too"
        assert format_reward(found.text) == 1.0
