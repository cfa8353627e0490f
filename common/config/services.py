"""Generators, coordinators, the queue."""

from typing import Literal

from pydantic import Field, JsonValue

from hora_rl.common.config.base import Count, PerPart, Section


class GeneratorConfig(Section):
    replicas: PerPart[Count] = Field(
        1, description="Replicas at the start; `deployments:` of the Serve file overrides it."
    )
    tensor_parallel: Count = Field(1, description="GPUs of one replica.")
    gpus: float | None = Field(
        None, ge=0, description="GPUs reserved per replica; none: tensor_parallel on a GPU machine, 0 on CPU."
    )
    cpus: float = Field(0.5, ge=0, description="CPUs reserved per replica, for Ray's placement.")
    max_sequences: Count = Field(256, description="vLLM's max_num_seqs.")
    memory_utilization: float = Field(0.9, gt=0, le=1, description="Share of a GPU's memory for vLLM.")
    kv_cache_gib: float | None = Field(
        None,
        gt=0,
        description="KV cache in GiB per tensor-parallel rank. None: 1 on CPU; on a GPU all of "
        "memory_utilization that is left at the start. Required if a learner shares the card.",
    )
    max_batched_tokens: Count | None = Field(
        None,
        description="vLLM's max_num_batched_tokens on a GPU: tokens per engine step; none: 8192.",
    )
    threads: Count = Field(1, description="CPU threads of one replica's engine; see run.resources.")
    enforce_eager: bool | None = Field(
        None,
        description="No graph capture or compilation: faster start, slower run. None: false on a GPU, true "
        "on CPU.",
    )
    engine_args: dict[str, JsonValue] = Field(
        {},
        description="Further arguments of vLLM's engine, by vLLM's names: `{kv_cache_dtype: fp8, "
        "quantization: fp8}` samples with 8 bits. Drift (weights.drift_alarm) shows their effect.",
    )
    clear_cache: bool = Field(
        True,
        description="At an update drop KV entries of old weights and recompute them, so later tokens depend "
        "only on the new weights. False is cheaper and keeps them.",
    )
    sleep: Literal["none", "step"] = Field(
        "none",
        description="`step`: while the learner steps on the same card, the engine frees its memory: weights "
        "wait in pinned host memory, KV entries are recomputed. Needs a GPU.",
    )

    @property
    def max_requests(self) -> int:
        """Requests accepted by one replica, running or queued in its engine, which serves the oldest shard
        first. Further ones wait outside, unordered."""
        return max(256, self.max_sequences)

    @property
    def batched_tokens(self) -> int:
        """Tokens of an engine's step on a GPU, at most."""
        return self.max_batched_tokens or 8192

    @property
    def captured(self) -> int:
        """Tokens of the largest CUDA graph on a GPU: a token of every sequence, and the ends of prompts that
        join them. vLLM's own limit is 512, beyond which decoding launches every kernel by itself."""
        return min(2 * self.max_sequences, self.max_sequences + 256)

    @property
    def cpu_kv_cache_gib(self) -> float:
        """KV cache of a replica on CPU, in GiB."""
        return self.kv_cache_gib or 1.0

    def check_sharing(self, staleness: int, ranks: int, transport: str) -> None:
        """Raise ValueError if the engine cannot sleep while the learner steps."""
        replicas, parallel = self.replicas, self.tensor_parallel
        cards = f"generator.replicas {replicas} · generator.tensor_parallel {parallel}"
        obstacles = (
            (
                replicas * parallel > 1,
                f"is for one card, and {cards} need {replicas * parallel}: set both to 1",
            ),
            (ranks > 1, f"is for one card, and learner.workers is {ranks}: set it to 1"),
            (transport == "nccl", "is for one card: set weights.transport (nccl) to file or gloo"),
            (not self.clear_cache, "drops the KV cache: set generator.clear_cache (false) to true"),
            (staleness > 0, f"stops generation for a step: set rollout.max_staleness ({staleness}) to 0"),
        )
        for applies, obstacle in obstacles:
            if self.sleep != "none" and applies:
                raise ValueError(f"generator.sleep ({self.sleep}) {obstacle}, or generator.sleep: none")


LIGHT_CPUS = 0.25
"""CPUs reserved for a coordinator, and for a replica of an environment."""


class CoordinatorConfig(Section):
    replicas: PerPart[Count] = Field(1, description="Coordinators; they share shards by leases in Redis.")


class QueueConfig(Section):
    url: PerPart[str | None] = Field(
        None, description="redis://, rediss:// or unix:// address; none: `hora run` starts a Redis."
    )
