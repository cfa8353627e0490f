"""The page's server with the endpoint beside it, as in the application, for tests of the page: guard and
trial are real, and a stand-in replaces vLLM's handlers and the generator replicas.

    python -m tests.support.page_with_endpoint REDIS_URL RUN PORT TOKEN
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Sequence
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response

from actors.endpoint.guard import Guard, Rate, problem
from actors.endpoint.trial import Trial, add_trial
from common.load import load
from common.prompts import load_tokenizer
from common.types import Completion, Prompt, Scored
from deploy.monitor import web

SAYS = "<think>7+8=15</think><answer>95</answer>"
NEWEST = 1000
CONFIG = load("tiny")
TOKENIZER = load_tokenizer(CONFIG.model.path)


async def complete(body: dict[str, Any]) -> Response:
    """`SAYS`, in weights of versions 3 and 4, as /v1/completions answers."""
    if body["min_weight_version"] >= NEWEST:
        return JSONResponse(problem(503, "no such weights yet"), 503)
    said = TOKENIZER.encode(SAYS, add_special_tokens=False)
    choice = {
        "text": SAYS,
        "finish_reason": "stop",
        "token_ids": said,
        "logprobs": {"token_logprobs": [-0.1] * len(said)},
    }
    spans = [{"version": 3, "start": 0, "end": 4}, {"version": 4, "start": 4, "end": len(said)}]
    return JSONResponse({"choices": [choice], "weight_versions": [spans]})


async def score(prompt: Prompt, completions: Sequence[Completion]) -> list[Scored]:
    right = [float(f"<answer>{prompt.answer}</answer>" in c.text) for c in completions]
    return [Scored({"format": 1.0, "accuracy": r}, r == 1.0) for r in right]


def main() -> None:
    redis_url, run, port, token = sys.argv[1:]
    endpoint = FastAPI()
    add_trial(endpoint, Trial(CONFIG, TOKENIZER, complete, score))

    async def digest() -> str:
        return hashlib.sha256(token.encode()).hexdigest()

    app = web.create_app(redis_url, run)
    app.mount("/v1", Guard(endpoint, digest, Rate(200), 4096))
    asyncio.run(uvicorn.Server(uvicorn.Config(app, port=int(port), log_level="warning")).serve())


if __name__ == "__main__":
    main()
