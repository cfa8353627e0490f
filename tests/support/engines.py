"""Real vLLM engines, and completions that are surely still running when something happens to them. vLLM takes
seconds to import, so that only a test that starts an engine imports it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hora_rl.common.config import Config

N = 64  # sequences of 400 tokens each are decoded for seconds, even by the smallest model


@asynccontextmanager
async def engine_of(config: Config, name: str = "generator") -> AsyncIterator[Any]:
    """An engine that holds the initial policy."""
    from hora_rl.actors.generator.vllm_engine import Engine

    engine = Engine(config, name)
    try:
        await engine.begin()
        yield engine
    finally:
        engine.shutdown()


def never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on an engine's completions end at their limit of tokens alone. The demo's model answers a
    prompt that it does not understand within three tokens, which is over before a call reaches the engine."""
    from vllm import SamplingParams

    from hora_rl.actors.generator import vllm_engine

    def endless(**settings: Any) -> SamplingParams:
        return SamplingParams(**{**settings, "stop_token_ids": [], "ignore_eos": True})

    monkeypatch.setattr(vllm_engine, "SamplingParams", endless)
