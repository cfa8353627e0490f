"""The policy under training as an OpenAI-compatible endpoint."""

from __future__ import annotations

from pydantic import Field

from hora_rl.common.config.base import Count, Section


class Serve(Section):
    """Client requests to the generators of a training run, with lower priority than rollouts."""

    endpoint: bool = Field(
        False,
        description="Serve /v1/chat/completions, /v1/completions and /v1/models with the newest weights. "
        "Requests need the run's token.",
    )
    max_sequences: Count = Field(
        16, description="Maximum sequences of such requests that a generator replica samples concurrently."
    )
    max_samples: Count = Field(8, description="Maximum completions of one request (`n`, times its prompts).")
    max_body_kib: Count = Field(1024, description="A larger request is refused with 413.")
    requests_per_minute: Count = Field(600, description="Limit over all clients; more are refused with 429.")
    cpus: float = Field(0.25, ge=0, description="CPUs reserved for the endpoint, for Ray's placement.")
