"""Stands for a vLLM engine where vLLM's OpenAI handlers want one; the engines are the generator replicas."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

from ray.exceptions import RayTaskError
from ray.serve.handle import DeploymentHandle
from vllm import SamplingParams
from vllm.outputs import RequestOutput
from vllm.renderers.registry import renderer_from_config

from actors.generator.vllm_engine import engine_args, spans_of
from common.config import Config
from common.types import VersionSpan

Spans = tuple[VersionSpan, ...]


@dataclass(slots=True)
class Watched:
    """A request under way: the oldest weight version that may answer it, the versions of its completions that
    have ended, by the number of the prompt and of the completion, and why a replica did not serve it."""

    version: int
    spans: dict[tuple[int, int], Spans] = field(default_factory=dict)
    failure: Exception | None = None


class EngineProxy:
    """`watched` holds the requests under way by their id, a part of vLLM's."""

    errored = False

    def __init__(self, config: Config, generator: DeploymentHandle) -> None:
        # An instruct model's generation configuration would truncate what is sampled, unasked.
        args = replace(engine_args(config), generation_config="vllm")
        self.vllm_config = args.create_engine_config()
        self.model_config = self.vllm_config.model_config
        self.renderer = renderer_from_config(self.vllm_config)
        self.input_processor = None
        self.watched: dict[str, Watched] = {}
        self._stream = generator.options(method_name="stream", stream=True)

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:
        """The replicas refuse what they have no room for."""

    async def generate(
        self, prompt: Any, params: SamplingParams, request_id: str, **_: object
    ) -> AsyncIterator[RequestOutput]:
        """Outputs of one prompt, as its replica gives them. Raises NoRoom and StaleWeights as it does."""
        name, _dash, number = request_id.partition("-")[2].partition("-")
        watched = self.watched[name]
        tokens = list(prompt["prompt_token_ids"])
        stream = self._stream.remote(tokens, params, watched.version)
        try:
            async for output in stream:
                for completion in output.outputs:
                    if completion.weight_versions:
                        watched.spans[int(number or 0), completion.index] = spans_of(completion)
                output.request_id = request_id
                yield output
        except RayTaskError as error:
            watched.failure = error.cause  # without the replica's trace, which is nobody's business
            raise watched.failure from None
        finally:
            stream.cancel()  # of a client that left; nothing where it has ended
