"""Generators, coordinators, the queue."""

from __future__ import annotations

from pydantic import Field

from common.config.base import Count, Seconds, Section


class Generator(Section):
    replicas: Count = Field(
        1, description="Replicas at the start; `deployments:` of the Serve file overrides it."
    )
    tensor_parallel: Count = Field(1, description="GPUs of one replica.")
    gpus: float | None = Field(
        None, ge=0, description="GPUs reserved per replica; none: tensor_parallel on a GPU machine, 0 on CPU."
    )
    cpus: float = Field(0.5, ge=0, description="CPUs reserved per replica, for Ray's placement.")
    max_requests: Count = Field(
        256,
        description="Requests that one replica accepts, running or queued in its engine, which serves the"
        " oldest shard first. Further ones wait outside, in no order.",
    )
    max_sequences: Count = Field(256, description="vLLM's max_num_seqs.")
    memory_utilization: float = Field(0.9, gt=0, le=1, description="Share of a GPU's memory for vLLM.")
    kv_cache_gib: Count = Field(1, description="KV cache on CPU, in GiB.")
    gpu_kv_cache_gib: float | None = Field(
        None,
        gt=0,
        description="KV cache on a GPU, in GiB per tensor-parallel rank; none: what memory_utilization "
        "leaves, measured at the start. Needed where a learner shares the card.",
    )
    max_batched_tokens: Count | None = Field(
        None,
        description="vLLM's max_num_batched_tokens on a GPU: tokens of one engine step; none: vLLM's "
        "default, 2048.",
    )
    threads: Count = Field(1, description="CPU threads of one replica's engine.")
    enforce_eager: bool = Field(
        True, description="No graph capture or compilation: starts faster, runs slower."
    )
    clear_cache: bool = Field(
        True,
        description="At an update drop KV entries of old weights and recompute them: later tokens then "
        "depend on the new weights alone. False is cheaper and keeps them.",
    )


class Coordinator(Section):
    replicas: Count = Field(
        1, description="Coordinators; shards are leased through Redis, so more than one may run."
    )
    lease_s: Seconds = Field(
        30.0, description="A coordinator that is silent for this long loses its shards to other coordinators."
    )
    cpus: float = Field(0.25, ge=0, description="CPUs reserved, for Ray's placement.")


class Queue(Section):
    url: str | None = Field(
        None, description="redis://, rediss:// or unix:// address; none: the one-machine run starts its own."
    )
    capacity: Count | None = Field(
        None,
        description="Maximum number of untrained groups before producers wait; none: (max_staleness + 2)·Γ.",
    )
    max_group_bytes: Count = Field(
        256 * 2**20, description="A larger message is refused before it is decoded."
    )
    dead_letters: Count = Field(10_000, description="Dead letters kept for inspection.")
