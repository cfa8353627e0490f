"""Serve deployment `endpoint`: serves the policy under training to clients that have the run's token.

    POST /v1/chat/completions, /v1/completions     as OpenAI's clients send them
    GET  /v1/models

Requests run on the generator replicas, with lower priority than rollouts and within a separate limit.
"""

import time
from typing import Any

import redis.exceptions
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from hora_rl.actors.endpoint.guard import Guard, Rate
from hora_rl.common import logs
from hora_rl.common.access import wanted_digest
from hora_rl.common.config import Config
from hora_rl.common.data.prompts import load_tokenizer
from hora_rl.common.data.stop_tokens import stop_texts, stop_tokens
from hora_rl.common.live.redis import connect_async
from hora_rl.common.live.state import read_state_async

FRESH_S = 5.0


@serve.ingress()
class Endpoint:
    """`config` is a dumped `Config`. Deployment `generator` samples."""

    def __init__(self, config: dict[str, Any], redis_url: str, generator: DeploymentHandle | None) -> None:
        self._config = Config.model_validate(config)
        logs.configure(self._config.telemetry.logs, run=self._config.run.name, part="endpoint")
        self._redis_url = redis_url
        self._generator = generator or serve.get_deployment_handle("generator", "hora")

    def __serve_build_asgi_app__(self) -> ASGIApp:
        # vLLM takes ten seconds to import, and only this replica needs it.
        from hora_rl.actors.endpoint.app import Handlers, create_app
        from hora_rl.actors.endpoint.proxy import EngineProxy
        from hora_rl.actors.generator.engine_args import engine_args

        config, limits = self._config, self._config.serve
        tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
        proxy = EngineProxy(engine_args(config), self._generator)
        stops: tuple[int | str, ...] = (
            *stop_tokens(config, tokenizer),
            *stop_texts(config.rollout.stop, tokenizer),
        )
        handlers = Handlers(config.run.name, limits, proxy, stops, config.evaluated.data)
        app = create_app(handlers)
        key = Key(self._redis_url, config.run.name)
        app.add_middleware(
            Guard,
            digest=key.digest,
            rate=Rate(limits.requests_per_minute),
            max_bytes=limits.max_body_kib * 1024,
        )
        return app


class Key:
    """The digest of the run's token, read from its state at most every `FRESH_S`."""

    def __init__(self, redis_url: str, run: str) -> None:
        self._redis_url, self._run = redis_url, run
        self._redis: Any = None
        self._stored: str | None = None
        self._read_at = -FRESH_S

    async def digest(self) -> str:
        """The digest. Empty until the first read, so that all requests are refused."""
        if time.monotonic() - self._read_at > FRESH_S:
            self._redis = self._redis or connect_async(self._redis_url)
            try:
                self._stored = (await read_state_async(self._redis, self._run)).token_sha256
                self._read_at = time.monotonic()
            except (redis.exceptions.RedisError, OSError):
                pass  # keep the last digest that was read
        return wanted_digest(self._stored)
