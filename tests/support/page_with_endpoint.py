"""The page's server with the endpoint beside it, as in the application, for tests of the page: guard and
trial are real, and `tests.support.tried` replaces vLLM's handlers and the verifier replicas.

    python -m tests.support.page_with_endpoint REDIS_URL RUN PORT TOKEN
"""

from __future__ import annotations

import asyncio
import hashlib
import sys

import uvicorn
from fastapi import FastAPI

from actors.endpoint.guard import Guard, Rate
from actors.endpoint.trial import Trial, add_trial
from deploy.monitor import web
from tests.support.tried import CONFIG, TOKENIZER, complete, score


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
