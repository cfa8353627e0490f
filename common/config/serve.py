"""The policy under training as an OpenAI-compatible endpoint."""

from __future__ import annotations

from pydantic import Field

from hora_rl.common.config.base import Count, Section


class Serve(Section):
    """Requests of clients to the generators of a training run, with lower priority than rollouts."""

    endpoint: bool = Field(
        False,
        description="Serve /v1/chat/completions, /v1/completions and /v1/models of the newest weights. A "
        "request must carry the run's token.",
    )
    max_sequences: Count = Field(
        16, description="Most sequences of such requests that one generator replica samples at a time."
    )
    max_samples: Count = Field(8, description="Most completions of one request (`n`, times its prompts).")
    max_body_kib: Count = Field(1024, description="A larger request is refused with 413.")
    requests_per_minute: Count = Field(
        600, description="Requests of all clients together; those beyond are refused with 429."
    )
    cpus: float = Field(0.25, ge=0, description="CPUs reserved for the endpoint, for Ray's placement.")
