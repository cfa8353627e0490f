"""The routes of the endpoint: vLLM's handlers, plus errors in OpenAI's format and weight versions."""

import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from jinja2 import TemplateError
from pydantic import BaseModel, ValidationError
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.entrypoints.openai.models.protocol import BaseModelPath
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import VLLMClientError
from vllm.renderers.online_renderer import OnlineRenderer

from hora_rl.actors.endpoint.guard import refusal
from hora_rl.actors.endpoint.line import LIMIT_S
from hora_rl.actors.endpoint.proxy import EngineProxy, Watched
from hora_rl.actors.endpoint.requests import Kind, Refused, checked
from hora_rl.common.config import Data, Serve
from hora_rl.common.errors import NoRoom, StaleWeights, one_line

log = structlog.get_logger(__name__)
# Errors that vLLM's handlers raise for an invalid request. Otherwise they return an ErrorResponse.
MISFITS = (
    VLLMClientError,
    ValueError,
    TypeError,
    KeyError,
    OverflowError,
    NotImplementedError,
    TemplateError,
)
Answer = AsyncIterator[str] | BaseModel
Handler = Callable[[Any], Awaitable[Answer]]


class Handlers:
    """vLLM's handlers over `proxy`. `stops` are the tokens and texts that end a completion in this run, and
    `data` has its chat template."""

    def __init__(
        self, run: str, limits: Serve, proxy: EngineProxy, stops: Sequence[int | str], data: Data
    ) -> None:
        self._limits, self._proxy, self._stops = limits, proxy, stops
        self.models = OpenAIServingModels(proxy, [BaseModelPath(name=run, model_path=run)])
        plain: Any = {"request_logger": None, "chat_template_content_format": "auto"}
        plain["chat_template"] = data.chat_template
        plain["default_chat_template_kwargs"] = dict(data.chat_template_kwargs)
        renderer = OnlineRenderer(proxy.model_config, proxy.renderer, **plain)
        chat = OpenAIServingChat(proxy, self.models, "assistant", online_renderer=renderer, **plain)
        completion = OpenAIServingCompletion(
            proxy, self.models, online_renderer=renderer, request_logger=None
        )

        self._handlers: dict[Kind, tuple[type[BaseModel], Handler]] = {
            "chat": (ChatCompletionRequest, chat.create_chat_completion),
            "completion": (CompletionRequest, completion.create_completion),
        }

    async def answer(self, raw: object, kind: Kind) -> Response:
        """Handle one request. All errors of vLLM's handlers become responses."""
        name = uuid.uuid4().hex
        try:
            asked = checked(raw, kind, self._limits, self._stops, name)
            watched = self._proxy.watched[name] = Watched(asked.version)
            request, handle = self._handlers[kind]
            answer = await handle(request.model_validate(asked.body))
        except Exception as error:  # noqa: BLE001  no request ends this replica, whatever handlers raise
            return failed(error)
        if isinstance(answer, BaseModel):
            return _whole(answer, watched)
        return await _streamed(answer, name, watched)


async def _streamed(answer: AsyncIterator[str], name: str, watched: Watched) -> Response:
    """Stream the events. Waits for the first event, so that a refused request gets an error status."""
    first = await anext(answer, "")
    if watched.failure is not None:
        return failed(watched.failure)
    return StreamingResponse(_events(first, answer, name, watched), media_type="text/event-stream")


async def _events(first: str, answer: AsyncIterator[str], name: str, watched: Watched) -> AsyncIterator[str]:
    """vLLM's events, and one with the weight versions before the last."""
    yield first
    async for event in answer:
        if event.startswith("data: [DONE]"):
            yield f"data: {json.dumps({'id': name, 'choices': [], **_versions(watched)})}\n\n"
        yield event


def create_app(handlers: Handlers) -> FastAPI:
    """The application. All responses are JSON or event streams."""
    app = FastAPI(title="HORA policy", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/models")
    async def models() -> Response:
        return JSONResponse((await handlers.models.show_available_models()).model_dump())

    @app.post("/chat/completions")
    async def chat(request: Request) -> Response:
        return await _served(handlers, request, "chat")

    @app.post("/completions")
    async def completions(request: Request) -> Response:
        return await _served(handlers, request, "completion")

    return app


async def _served(handlers: Handlers, request: Request, kind: Kind) -> Response:
    try:
        raw = json.loads(await request.body())
    except (ValueError, RecursionError):
        return refusal(400, "the body is not JSON")
    return await handlers.answer(raw, kind)


def failed(error: Exception) -> Response:
    """The error response for a failed request."""
    if isinstance(error, Refused):
        return refusal(400, str(error), error.field)
    if isinstance(error, NoRoom):
        wait = {"Retry-After": f"{LIMIT_S:.0f}"}
        return refusal(429, f"no room for this request: {error}"[:300], headers=wait)
    if isinstance(error, StaleWeights):
        return refusal(503, f"no such weights yet: {error}"[:300], headers={"Retry-After": "5"})
    if isinstance(error, ValidationError):
        lines = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5]]
        return refusal(400, "; ".join(lines)[:1000])
    if isinstance(error, MISFITS):
        return refusal(400, one_line(error, 500))
    log.error("a request failed", reason=f"{type(error).__name__}: {error}"[:500])
    return refusal(500, "the request could not be served; the endpoint's log says why")


def _whole(answer: BaseModel, watched: Watched) -> Response:
    if isinstance(answer, ErrorResponse):
        return refusal(answer.error.code, answer.error.message)
    return JSONResponse({**answer.model_dump(mode="json"), **_versions(watched)})


def _versions(watched: Watched) -> dict[str, object]:
    """The field that HORA adds: the weight versions of the tokens of each completion, in order."""
    spans = [[asdict(span) for span in watched.spans[place]] for place in sorted(watched.spans)]
    return {"weight_versions": spans}
