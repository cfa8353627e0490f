"""Requests as vLLM's front end hands them to its engine."""

import time
from typing import Any


def core_request(name: str, params: Any, prompt_tokens: int) -> Any:
    """A request called `name`, with a prompt of so many tokens. `params` are vLLM's `SamplingParams`."""
    from vllm.v1.engine import EngineCoreRequest

    request = EngineCoreRequest(
        request_id=name,
        prompt_token_ids=[1] * prompt_tokens,
        mm_features=None,
        sampling_params=params,
        pooling_params=None,
        arrival_time=time.time(),
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )
    request.external_req_id = name
    return request
