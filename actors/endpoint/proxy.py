"""The engine client of vLLM's OpenAI handlers. It forwards requests to the generator replicas."""

from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakValueDictionary

from ray.exceptions import RayError, RayTaskError
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator
from vllm import AsyncEngineArgs, SamplingParams
from vllm.outputs import RequestOutput
from vllm.renderers.registry import renderer_from_config

from hora_rl.actors.endpoint.line import Line
from hora_rl.actors.generator.vllm_engine import spans_of
from hora_rl.common.errors import NoRoom, UnhealthyError
from hora_rl.common.types import VersionSpan


@dataclass(slots=True, weakref_slot=True)
class Watched:
    """A running request: the oldest weight version that may serve the request, the version spans of complete
    completions by (prompt, completion) number, and the error of a replica that refused the request."""

    version: int
    spans: dict[tuple[int, int], tuple[VersionSpan, ...]] = field(default_factory=dict)
    failure: Exception | None = None


class EngineProxy:
    """`args` are the replicas' engine arguments. `watched` finds running requests by id, which is a part of
    vLLM's request id. It does not hold them: a request that ends or is cancelled anywhere leaves nothing."""

    errored = False

    def __init__(self, args: AsyncEngineArgs, generator: DeploymentHandle) -> None:
        # An instruct model's generation configuration would set top_p or top_k by default.
        self.vllm_config = replace(args, generation_config="vllm").create_engine_config()
        self.model_config = self.vllm_config.model_config
        self.renderer = renderer_from_config(self.vllm_config)
        self.input_processor = None
        self.watched = WeakValueDictionary[str, Watched]()
        self._line = Line()
        self._stream = generator.options(method_name="stream", stream=True)

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:
        """Accept every request: the replicas refuse those that exceed their limit."""

    async def generate(
        self, prompt: Any, params: SamplingParams, request_id: str, **_: object
    ) -> AsyncIterator[RequestOutput]:
        """Outputs of one prompt, as its replica streams them. Passes on the replica's NoRoom and
        StaleWeights."""
        name, _dash, number = request_id.partition("-")[2].partition("-")
        watched = self.watched[name]
        tokens = list(prompt["prompt_token_ids"])

        async def begun() -> DeploymentResponseGenerator[RequestOutput]:
            stream = self._stream.remote(tokens, params, watched.version)
            with ExitStack() as otherwise:
                otherwise.callback(stream.cancel)
                await anext(stream)  # the replica has a place
                otherwise.pop_all()
            return stream

        stream = None
        try:
            stream = await self._line.served(begun)
            async for output in stream:
                for completion in output.outputs:
                    if completion.weight_versions:
                        watched.spans[int(number or 0), completion.index] = spans_of(completion)
                output.request_id = request_id
                yield output
        except (RayError, NoRoom) as error:
            # Without the replica's stack trace and address, which clients must not see.
            gone = UnhealthyError("the generator replica of this request has ended: send it again")
            own = error.cause if isinstance(error, RayTaskError) else error  # Ray's may be a NoRoom too
            watched.failure = gone if isinstance(own, RayError) else own
            raise watched.failure from None
        finally:
            if stream is not None:
                stream.cancel()  # for a client that disconnected; no effect on a finished stream
