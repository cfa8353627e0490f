"""Real vLLM engines. vLLM takes seconds to import, so that only a test that starts one imports it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hora_rl.common.config import Config


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
