"""The configuration of one experiment: one YAML file for `serve deploy`, the learner and the one-machine run.

Unknown keys and impossible values are refused with the key's path, both values and the reason. Names are the
paper's where it has one: Γ = rollout.prompts_per_batch, G = rollout.group_size, G0 = rollout.pre_rollouts.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Run(Section):
    """Who this run is and where it writes."""

    name: str = Field(
        "hora",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="Name of the run: its folder and its Redis keys.",
    )
    folder: str = Field("runs", description="Folder that holds one folder per run.")
    seed: int = Field(0, ge=0, lt=2**31, description="Seed of data order, sampling and training.")


class Model(Section):
    path: str = Field(description="Hugging Face folder or hub name of the initial policy.")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "bfloat16", description="Precision of weights, in generator and learner."
    )
    trust_remote_code: bool = Field(
        False, description="Run code that ships inside the model folder. Off unless you trust it."
    )


class Data(Section):
    path: str = Field(description="JSONL file, Hugging Face data set name, or `arithmetic`.")
    split: str = Field("train", description="Split, for Hugging Face data sets.")
    prompt_field: str = Field("problem", description="Column of the problem.")
    answer_field: str = Field("answer", description="Column of the gold answer.")
    limit: Count | None = Field(None, description="Use the first so many rows only.")
    system: str | None = Field(
        None, description="System message of the chat template; none for the template's own."
    )
    template: str = Field("{problem}", description="Text of the user message; {problem} is replaced.")
    chat: bool = Field(True, description="Render through the tokenizer's chat template.")
    shuffle: bool = Field(True, description="New order each epoch, pure in seed and epoch.")
    benchmarks: tuple[str, ...] = Field(
        (), description="JSONL benchmark files the training prompts are checked against for leaks."
    )

    @field_validator("template")
    @classmethod
    def _has_problem(cls, value: str) -> str:
        if "{problem}" not in value:
            raise ValueError("must contain {problem}, the place where the problem goes")
        return value


class Rollout(Section):
    prompts_per_batch: Count = Field(60, description="Γ: prompts of one optimizer step.")
    group_size: Count = Field(
        32, description="G: mean rollouts per prompt; Γ·G is the budget of a batch, whatever the rule."
    )
    pre_rollouts: int = Field(8, ge=1, description="G0: rollouts of Phase A for every prompt.")
    shards: Count = Field(4, description="A batch is cut into so many shards, each allocated on its own.")
    shards_in_flight: Count = Field(8, description="Shards that one coordinator works on at the same time.")
    max_staleness: int = Field(
        1, ge=0, description="Batch b may start when b <= version + max_staleness. 0: synchronous."
    )
    temperature: float = Field(
        0.7, gt=0, le=2, description="Sampling temperature, in training and evaluation; vLLM takes at most 2."
    )
    top_p: float = Field(
        1.0, description="Must be 1: a truncated distribution biases the importance weights."
    )
    top_k: int = Field(0, description="Must be 0, for the same reason.")
    max_prompt_tokens: Count = Field(2048, description="Longer prompts are reported and left out.")
    max_response_tokens: Count = Field(
        2048, description="A completion is cut here; Z of `constant` normalisation."
    )
    samples_per_request: Count = Field(
        16,
        description="Most completions of one request: a large Δ_i is split so that no replica keeps the tail.",
    )
    time_limit_s: Seconds = Field(
        600.0,
        description="A completion that decodes for longer is cut as if at its token limit, and counted; waiting in line and pauses for weights do not count.",
    )
    attempts: Count = Field(20, description="Tries of one request before the run stops with the reason.")

    @field_validator("top_p")
    @classmethod
    def _top_p(cls, value: float) -> float:
        if value != 1.0:
            raise ValueError(
                f"must be 1.0, not {value}: truncation renormalises the sampling distribution and biases the importance weights"
            )
        return value

    @field_validator("top_k")
    @classmethod
    def _top_k(cls, value: int) -> int:
        if value != 0:
            raise ValueError(
                f"must be 0, not {value}: truncation renormalises the sampling distribution and biases the importance weights"
            )
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.pre_rollouts >= self.group_size:
            raise ValueError(
                f"rollout.pre_rollouts ({self.pre_rollouts}) must be smaller than rollout.group_size ({self.group_size})"
            )
        if self.prompts_per_batch % self.shards:
            raise ValueError(
                f"rollout.shards ({self.shards}) must divide rollout.prompts_per_batch ({self.prompts_per_batch})"
            )
        return self

    @property
    def prompts_per_shard(self) -> int:
        return self.prompts_per_batch // self.shards

    @property
    def shard_budget(self) -> int:
        """Phase B rollouts of one shard: (Γ/shards)·(G - G0)."""
        return self.prompts_per_shard * (self.group_size - self.pre_rollouts)


class WarmUp(Section):
    """Uniform allocation until the format is learned (paper, appendix C)."""

    enabled: bool = Field(True, description="Start with plain GRPO (uniform).")
    format_reward: float = Field(0.85, ge=0, le=1, description="Mean format reward that counts as learned.")
    cycles: Count = Field(
        3, description="Consecutive generation cycles at or above it before HORA takes over for good."
    )


class Allocation(Section):
    rule: str = Field(
        "hit_utility",
        description="hit_utility, uniform, hard_first, variance, knapsack, or package.module:function.",
    )
    prior: str = Field(
        "fixed", description="fixed, hidden-static, hidden-online, hidden-dual, mpnet-dual or gp."
    )
    alpha: float = Field(1.0, gt=0, description="α0 of the fixed Beta prior.")
    beta: float = Field(1.0, gt=0, description="β0 of the fixed Beta prior.")
    max_group_size: Count | None = Field(None, description="Cap on G_i; none by default.")
    prior_state: str | None = Field(None, description="File of a prior fitted offline by `hora prior fit`.")
    features: str | None = Field(
        None,
        description="Sentence-embedding model (name or path) for mpnet-dual and gp; hidden-* use model.path.",
    )
    warmup: WarmUp = WarmUp()


class Reward(Section):
    weights: dict[str, float] = Field(
        {"format": 0.5, "accuracy": 0.5},
        description="Weight of each reward by name; `package.module:function` adds your own.",
    )
    time_limit_s: Seconds = Field(
        5.0,
        description="Time math-verify gets for one answer; then its process is killed and the answer counts as wrong.",
    )
    max_answer_chars: Count = Field(2000, description="A longer answer is wrong without being parsed.")

    @field_validator("weights")
    @classmethod
    def _weights(cls, value: dict[str, float]) -> dict[str, float]:
        if not any(value.values()):
            raise ValueError("at least one weight must not be zero, or no rollout can teach anything")
        unknown = [name for name in value if name not in ("format", "accuracy") and ":" not in name]
        if unknown:
            raise ValueError(
                f"unknown reward {unknown[0]!r}: use format, accuracy or package.module:function"
            )
        return value


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
        description="Requests one replica holds, in work or in its engine's line, where the oldest shard is first; more wait outside, in no order.",
    )
    routing: Literal["prefix", "balance"] = Field(
        "prefix",
        description="prefix: a prompt's samples go where its prefix is cached, unless that replica is overloaded; balance: by load alone.",
    )
    max_sequences: Count = Field(256, description="vLLM's max_num_seqs.")
    memory_utilization: float = Field(0.9, gt=0, le=1, description="Share of a GPU's memory for vLLM.")
    kv_cache_gib: Count = Field(1, description="KV cache on CPU, in GiB.")
    threads: Count = Field(1, description="CPU threads of one replica's engine.")
    enforce_eager: bool = Field(
        True, description="No graph capture or compilation: starts faster, runs slower."
    )
    clear_cache: bool = Field(
        True,
        description="At an update drop KV entries of old weights and recompute them: later tokens then depend on the new weights alone. False is cheaper and keeps them.",
    )


class Verifier(Section):
    replicas: Count = Field(1, description="Replicas at the start.")
    processes: Count = Field(1, description="Killable worker processes of one replica.")
    cpus: float = Field(0.25, ge=0, description="CPUs reserved per replica, for Ray's placement.")


class Coordinator(Section):
    replicas: Count = Field(
        1, description="Coordinators; shards are leased through Redis, so more than one may run."
    )
    lease_s: Seconds = Field(
        30.0, description="A coordinator silent for so long loses its shards to the others."
    )
    cpus: float = Field(0.25, ge=0, description="CPUs reserved, for Ray's placement.")


class Queue(Section):
    url: str | None = Field(
        None, description="redis://, rediss:// or unix:// address; none: the one-machine run starts its own."
    )
    capacity: Count | None = Field(
        None, description="Most untrained groups before producers wait; none: (max_staleness + 2)·Γ."
    )
    max_group_bytes: Count = Field(
        256 * 2**20, description="A larger message is refused before it is decoded."
    )
    dead_letters: Count = Field(10_000, description="Dead letters kept for inspection.")


class Optimizer(Section):
    learning_rate: float = Field(1e-6, gt=0, description="Peak learning rate.")
    schedule: Literal["linear", "constant", "cosine"] = Field(
        "linear", description="Decay over learner.steps."
    )
    warmup_steps: int = Field(0, ge=0, description="Steps of linear increase at the start.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's weight decay.")
    betas: tuple[Beta, Beta] = Field((0.9, 0.999), description="AdamW's betas.")
    epsilon: float = Field(1e-8, gt=0, description="AdamW's epsilon.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradient norm is clipped to this.")


class Objective(Section):
    """L = -(1/Γ) Σ_i (1/G_i) Σ_j (1/Z_ij) Σ_t w_ijt min(ρA, clip(ρ)A) (paper, equation 1 with 1/G_i)."""

    advantage: Literal["grpo", "dr_grpo", "rloo"] = Field(
        "grpo", description="(R-mean)/(std+1e-4), R-mean, or leave one out."
    )
    normalisation: Literal["constant", "sequence"] = Field(
        "constant", description="Z: max_response_tokens (Dr.GRPO) or the own length."
    )
    clip_low: float = Field(0.2, ge=0, lt=1, description="ρ is clipped to at least 1 - clip_low.")
    clip_high: float = Field(0.2, ge=0, description="ρ is clipped to at most 1 + clip_high.")
    importance: Literal["token_truncate", "token_mask", "sequence_mask", "none"] = Field(
        "token_truncate", description="Correction of π_prox/π_gen."
    )
    importance_cap: float = Field(3.0, gt=0, description="C of the correction.")
    kl: float = Field(
        0.0, ge=0, description="Coefficient of the k3 KL estimate to the frozen initial policy."
    )
    updates_per_batch: Count = Field(
        1, description="Gradient updates on one batch; above 1, π_prox is recomputed once."
    )


class Learner(Section):
    steps: Count = Field(200, description="Optimizer steps of the run.")
    workers: Count = Field(1, description="Data-parallel ranks.")
    threads: Count = Field(1, description="CPU threads of one rank.")
    zero_stage: Literal[0, 1, 2, 3] = Field(0, description="DeepSpeed ZeRO stage; 0 is 1 in 16 bits.")
    tokens_per_microbatch: Count = Field(
        16384, description="Prompt and completion tokens of one micro-batch."
    )
    logit_chunk: Count = Field(1024, description="Tokens whose logits exist in float32 at a time.")
    gradient_checkpointing: bool = Field(False, description="Recompute activations in the backward pass.")
    offload_optimizer: bool = Field(False, description="Keep optimizer state in CPU memory.")
    attention: Literal["sdpa", "flash_attention_2", "eager"] = Field(
        "sdpa",
        description="Attention implementation of the learner's model; flash_attention_2 needs 16 bits and its package.",
    )
    optimizer: Optimizer = Optimizer()
    objective: Objective = Objective()
    checkpoint_every: Count = Field(10, description="Steps between durable checkpoints.")
    keep_checkpoints: Count = Field(2, description="Newest checkpoints kept.")
    group_cache_gib: float = Field(
        4.0,
        ge=0,
        description="Host memory in which rank 0 keeps validated groups until their step, to read them once.",
    )
    max_dead_in_a_row: Count = Field(10, description="So many unusable groups in a row stop the run.")
    max_bad_losses: Count = Field(3, description="So many steps without a finite loss stop the run.")
    wait_limit_s: Seconds = Field(
        1800.0, description="No group for so long stops the learner with the reason."
    )
    wandb: str | None = Field(None, description="Weights & Biases project; none: off.")


class Weights(Section):
    transport: Literal["file", "gloo", "nccl"] = Field(
        "file",
        description="file: any machine that shares run.folder; gloo: over the network; nccl: GPU to GPU.",
    )
    update_limit_s: Seconds = Field(120.0, description="Deadline of every phase of an update.")
    drift_alarm: float = Field(
        0.1,
        gt=0,
        description="Mean |log-prob difference| of generator and learner, same version, above which an alarm is raised.",
    )


class Telemetry(Section):
    logs: Literal["text", "json"] = Field("text", description="Form of log lines.")
    stall_s: Seconds = Field(
        300.0, description="No progress for so long: the run says which part it waits for."
    )
    http_host: str = Field(
        "127.0.0.1", description="Address of the HTTP endpoint; loopback unless you expose it."
    )
    http_port: int = Field(8000, ge=0, le=65535, description="Port of the HTTP endpoint; 0: a free one.")


class Evaluation(Section):
    """Pass@K on held-out problems, before and after a `hora run`."""

    path: str | None = Field(None, description="Held-out JSONL file or `arithmetic`; none: no evaluation.")
    prompts: Count = Field(100, description="Problems of one evaluation.")
    samples: Count = Field(64, description="N: completions per problem.")
    k: tuple[int, ...] = Field((1, 8, 64), min_length=1, description="K of Pass@K; each at most N.")

    @field_validator("k")
    @classmethod
    def _rising(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(set(value)))

    @model_validator(mode="after")
    def _k_within_n(self) -> Self:
        bad = [k for k in self.k if not 1 <= k <= self.samples]
        if bad:
            raise ValueError(
                f"evaluation.k ({bad[0]}) must be between 1 and evaluation.samples ({self.samples}): Pass@K needs N >= K"
            )
        return self


class Config(Section):
    run: Run = Run()
    model: Model
    data: Data
    rollout: Rollout = Rollout()
    allocation: Allocation = Allocation()
    reward: Reward = Reward()
    generator: Generator = Generator()
    verifier: Verifier = Verifier()
    coordinator: Coordinator = Coordinator()
    queue: Queue = Queue()
    learner: Learner = Learner()
    weights: Weights = Weights()
    telemetry: Telemetry = Telemetry()
    evaluation: Evaluation = Evaluation()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        needed = (self.rollout.max_staleness + 1) * self.rollout.prompts_per_batch
        if self.queue.capacity is not None and self.queue.capacity < needed:
            raise ValueError(
                f"queue.capacity ({self.queue.capacity}) must be at least (rollout.max_staleness + 1)·rollout.prompts_per_batch "
                f"= {self.rollout.max_staleness + 1}·{self.rollout.prompts_per_batch} = {needed}, or the oldest batch could wait behind newer ones for ever"
            )
        longest = self.rollout.max_prompt_tokens + self.rollout.max_response_tokens
        if self.learner.tokens_per_microbatch < longest:
            raise ValueError(
                f"learner.tokens_per_microbatch ({self.learner.tokens_per_microbatch}) must hold one longest completion: rollout.max_prompt_tokens "
                f"+ rollout.max_response_tokens = {self.rollout.max_prompt_tokens} + {self.rollout.max_response_tokens} = {longest}"
            )
        if self.learner.attention == "flash_attention_2" and self.model.dtype == "float32":
            raise ValueError(
                "learner.attention (flash_attention_2) computes in 16 bits only, and model.dtype is float32: use bfloat16, or sdpa"
            )
        cap = self.allocation.max_group_size
        if cap is not None and cap < self.rollout.group_size:
            raise ValueError(
                f"allocation.max_group_size ({cap}) must be at least rollout.group_size ({self.rollout.group_size}), or a batch cannot hold its Γ·G rollouts"
            )
        return self

    @property
    def capacity(self) -> int:
        """Untrained groups the queue holds before producers wait."""
        return self.queue.capacity or (self.rollout.max_staleness + 2) * self.rollout.prompts_per_batch
