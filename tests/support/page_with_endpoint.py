"""The page's server with the endpoint beside it, as in the application, for tests of the page: guard,
handlers and trial are real, and a stand-in replaces the generator replicas.

    python -m tests.support.page_with_endpoint REDIS_URL RUN PORT TOKEN
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import uvicorn
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput, WeightVersionSpan

from actors.endpoint.app import Handlers, create_app
from actors.endpoint.guard import Guard, Rate
from actors.endpoint.proxy import EngineProxy
from actors.endpoint.trial import Trial, add_trial
from common.errors import StaleWeights
from common.load import load
from common.prompts import load_tokenizer
from common.stop_tokens import stop_tokens
from common.types import Completion, Prompt, Scored
from deploy.monitor import web

SAYS = "<think>7+8=15</think><answer>95</answer>"
NEWEST = 1000


class Replicas:
    """A generator's handle that says `SAYS`, in weights of versions 3 and 4."""

    def __init__(self, tokenizer: Any) -> None:
        self._said = tokenizer.encode(SAYS, add_special_tokens=False)

    def options(self, **_: object) -> Replicas:
        return self

    def remote(self, tokens: list[int], params: Any, version: int) -> Stream:
        return Stream(tokens, self._said, version)


class Stream:
    def __init__(self, prompt: list[int], said: list[int], version: int) -> None:
        self._prompt, self._said, self._version = prompt, said, version

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        if self._version >= NEWEST:
            raise StaleWeights(f"version {self._version} is not here")
        spans = [WeightVersionSpan("3", 0, 4), WeightVersionSpan("4", 4, len(self._said))]
        likely = [{t: Logprob(-0.1, 1, "x")} for t in self._said]
        output = CompletionOutput(
            0, SAYS, self._said, 0.0, likely, finish_reason="stop", weight_versions=spans
        )
        yield RequestOutput("r", None, self._prompt, None, [output], finished=True)

    def cancel(self) -> None:
        """It has ended."""


async def score(prompt: Prompt, completions: Sequence[Completion]) -> list[Scored]:
    right = [float(f"<answer>{prompt.answer}</answer>" in c.text) for c in completions]
    return [Scored({"format": 1.0, "accuracy": r}, r == 1.0) for r in right]


def main() -> None:
    redis_url, run, port, token = sys.argv[1:]
    config = load("tiny", ["serve.max_body_kib=4"])
    tokenizer = load_tokenizer(config.model.path)
    handlers = Handlers(config, EngineProxy(config, Replicas(tokenizer)), stop_tokens(config, tokenizer))
    endpoint = create_app(handlers)
    add_trial(endpoint, Trial(config, tokenizer, handlers, score))

    async def digest() -> str:
        return hashlib.sha256(token.encode()).hexdigest()

    app = web.create_app(redis_url, run)
    app.mount("/v1", Guard(endpoint, digest, Rate(200), 4096))
    asyncio.run(uvicorn.Server(uvicorn.Config(app, port=int(port), log_level="warning")).serve())


if __name__ == "__main__":
    main()
