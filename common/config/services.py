"""Generators, coordinators, the queue; views and records of a run, and its evaluation."""

import shlex
from typing import Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

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
        None, description="vLLM's max_num_batched_tokens on a GPU: tokens of an engine step; none: 8192."
    )
    threads: Count = Field(1, description="CPU threads of one replica's engine; see run.resources.")
    enforce_eager: bool | None = Field(
        None,
        description="No graph capture or compilation: faster start, slower run. None: true on CPU alone.",
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
        """Requests accepted by one replica, whose engine serves the oldest shard first; others wait
        outside."""
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


class TelemetryConfig(Section):
    logs: Literal["text", "json"] = Field("text", description="Form of log lines.")
    on_alert: str | None = Field(
        None,
        description="Receiver of warnings and the end of a run as JSON: an http(s) address, or a command "
        "that reads standard input; none: off.",
    )
    http_host: str = Field("127.0.0.1", description="Address of the HTTP endpoint; loopback by default.")
    http_names: tuple[str, ...] = Field((), description="Page host names besides localhost and addresses.")
    http_port: int = Field(8000, ge=0, le=65535, description="Port of the HTTP endpoint; 0: a free one.")
    rollouts: Literal["all", "logprobs", "none"] = Field(
        "all", description="Rollouts kept in RUN/rollouts; logprobs: with ids and log-probs, thrice the size."
    )
    rollouts_gib: float = Field(
        20.0, gt=0, description="Limit of RUN/rollouts in GiB: files of the oldest steps are deleted first."
    )

    @field_validator("on_alert")
    @classmethod
    def _on_alert(cls, value: str | None) -> str | None:
        if value is None or value.startswith(("http://", "https://")):
            return value
        if "://" in value or not shlex.split(value):
            raise ValueError("write an address that begins with http:// or https://, or a command")
        return value


UNCUT = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
"""Values that leave no token out."""


class EvaluationConfig(Section):
    """Pass@K on held-out problems: before and after a `hora run`, and during training with `every`."""

    path: str | None = Field(
        None,
        description="Held-out JSONL file, Hugging Face data set or `arithmetic`; none: no evaluation. The "
        "first of data.sources gives its columns, messages and rewards.",
    )
    name: str | None = Field(
        None, description="Configuration of a Hugging Face data set. none: data.name, if path is data.path."
    )
    revision: str | None = Field(
        None, description="Its branch, tag or commit. none: data.revision, if path is data.path."
    )
    split: str | None = Field(None, description="Its split. none: test.")
    every: Count | None = Field(
        None,
        description="Optimizer steps between evaluations during training, in `hora run` and `hora train`, on "
        "the training generators with lower priority. none: only before and after `hora run`.",
    )
    max_sequences: Count = Field(
        32, description="Most completions of an evaluation that a replica samples at a time during training."
    )
    prompts: Count = Field(100, description="Problems of one evaluation.")
    samples: Count = Field(64, description="N: completions per problem.")
    k: tuple[int, ...] = Field((1, 8, 64), min_length=1, description="K of Pass@K; each at most N.")
    truncation: dict[str, float] = Field(
        {},
        description="Sample only the most probable tokens: those that hold probability `top_p`, the first "
        "`top_k`, those of at least `min_p` times the highest. Training samples from all tokens, because the "
        "learner scores all.",
    )

    @property
    def on_the_hub(self) -> dict[str, str]:
        """The set keys that locate rows in a Hugging Face data set, as fields of `Data`."""
        named = {"name": self.name, "revision": self.revision, "split": self.split}
        return {key: value for key, value in named.items() if value is not None}

    @field_validator("truncation")
    @classmethod
    def _shares(cls, value: dict[str, float]) -> dict[str, float]:
        for name, number in value.items():
            if name not in UNCUT:
                raise ValueError(f"evaluation.truncation.{name} is none of {', '.join(UNCUT)}")
            top_k = name == "top_k"
            if number < 0 or (number % 1 if top_k else number > 1) or (name == "top_p" and not number):
                raise ValueError(
                    f"evaluation.truncation.{name} ({number:g}) must be {'a count' if top_k else 'a share'}"
                )
        return {name: int(n) if name == "top_k" else n for name, n in value.items() if n != UNCUT[name]}

    @field_validator("k")
    @classmethod
    def _rising(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(set(value)))

    @model_validator(mode="after")
    def _k_within_n(self) -> Self:
        bad = [k for k in self.k if not 1 <= k <= self.samples]
        if bad:
            raise ValueError(
                f"evaluation.k ({bad[0]}) must be between 1 and evaluation.samples ({self.samples}) = N"
            )
        return self
