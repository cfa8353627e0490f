"""Optimizer, adapters (LoRA), learner and weight transfer."""

import math
from typing import Literal

from pydantic import Field, field_validator

from hora_rl.common.config.base import Beta, Count, PerStart, Seconds, Section
from hora_rl.common.config.objective import ObjectiveConfig

VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks for which vLLM allocates memory (`max_lora_rank`). Other ranks use the next larger one."""


class LoraConfig(Section):
    """W + (alpha/rank)·B·A replaces each target's weight W; A and B are trained, W is not."""

    rank: Count = Field(16, description="Rows of A and columns of B; vLLM serves up to 512.")
    alpha: float = Field(32.0, gt=0, description="The product B·A is multiplied by alpha/rank.")
    targets: tuple[str, ...] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        min_length=1,
        description="Names of the linear layers that get an adapter, in every block.",
    )

    @field_validator("rank")
    @classmethod
    def _served(cls, rank: int) -> int:
        if rank > VLLM_RANKS[-1]:
            raise ValueError(
                f"exceeds {VLLM_RANKS[-1]}, the largest rank that vLLM serves: lower it, or train full "
                "weights (learner.lora: null)"
            )
        return rank

    @property
    def served_rank(self) -> int:
        """The rank for which vLLM allocates memory."""
        return next(r for r in VLLM_RANKS if r >= self.rank)

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    @property
    def adapter_config(self) -> dict[str, object]:
        """Settings for peft's `LoraConfig` and `adapter_config.json`, without the base model."""
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": self.rank,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "target_modules": list(self.targets),
            "bias": "none",
        }

    def check_serving(self, dtype: str, transport: str, clear_cache: bool) -> None:
        """Raise ValueError if vLLM would not serve exactly the trained model."""
        if dtype != "float32" and not math.log2(self.scale).is_integer():
            raise ValueError(
                f"learner.lora.alpha / learner.lora.rank = {self.alpha:g}/{self.rank} = {self.scale:.4g} is "
                f"not a power of two: vLLM would round its product with B in {dtype}, the learner does not"
            )
        if transport == "nccl":
            raise ValueError(
                "weights.transport (nccl) cannot send the adapter of learner.lora: use file or gloo"
            )
        if not clear_cache:
            raise ValueError(
                "generator.clear_cache (false) with learner.lora: vLLM finds cached prompts by the adapter's "
                "name and would reuse the old adapter's keys and values: set generator.clear_cache: true"
            )


class OptimizerConfig(Section):
    learning_rate: float = Field(1e-6, gt=0, description="Peak learning rate.")
    schedule: Literal["linear", "constant", "cosine"] = Field("linear", description="Decay over `steps`.")
    warmup_steps: int = Field(0, ge=0, description="Steps of linear increase at the start.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's weight decay.")
    betas: tuple[Beta, Beta] = Field((0.9, 0.999), description="AdamW's betas.")
    epsilon: float = Field(1e-8, gt=0, description="AdamW's epsilon.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradient norm is clipped to this.")


class LearnerConfig(Section):
    steps: PerStart[Count] = Field(200, description="Optimizer steps of the run.")
    workers: PerStart[Count] = Field(1, description="Data-parallel ranks.")
    threads: PerStart[Count] = Field(1, description="CPU threads of one rank; see run.resources.")
    gpus: PerStart[float | None] = Field(
        None,
        gt=0,
        le=1,
        description="Share of a GPU per rank; none: 1 on a GPU machine. Below 1 on a card with a generator.",
    )
    zero_stage: Literal[0, 1, 2, 3] = Field(0, description="DeepSpeed ZeRO stage; 0 is 2 in 16 bits.")
    tokens_per_microbatch: PerStart[Count] = Field(
        16384, description="Prompt and completion tokens; see run.resources."
    )
    logit_chunk: PerStart[Count] = Field(1024, description="Tokens whose logits exist in float32 at a time.")
    gradient_checkpointing: PerStart[bool] = Field(
        False, description="Recompute activations in backward; see run.resources."
    )
    offload_optimizer: bool = Field(False, description="Keep optimizer state in CPU memory.")
    lora: LoraConfig | None = Field(None, description="Train a low-rank adapter; null: full weights.")
    optimizer: OptimizerConfig = OptimizerConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    checkpoint_every: PerStart[Count] = Field(10, description="Steps between durable checkpoints.")
    keep_checkpoints: PerStart[Count] = Field(
        2, description="Newest checkpoints kept, verified. Redis keeps the groups since the oldest of them."
    )
    keep_best: PerStart[str | None] = Field(
        None,
        description="pass@K (a K of evaluation.k): RUN/best keeps the weights of its highest value; needs "
        "evaluation.every.",
    )
    wait_limit_s: PerStart[Seconds] = Field(
        1800.0, description="The learner stops, with the reason, after this long without a group."
    )
    wandb: PerStart[str | None] = Field(None, description="Weights & Biases project; none: off.")


PACKED_BYTES = 256 * 2**20
"""Bytes at which both sides close a chunk of vLLM's packed transfer. Its default of 1 GiB takes 3 to 6 GiB of
a card, and gains nothing from 256 MiB on."""


class WeightsConfig(Section):
    transport: Literal["file", "gloo", "nccl"] = Field(
        "file", description="file: machines that share run.folder; gloo: over the network; nccl: GPU to GPU."
    )
    update_limit_s: PerStart[Seconds] = Field(120.0, description="Deadline of every phase of an update.")
    drift_alarm: PerStart[float] = Field(
        0.1, gt=0, description="Alarm above this mean |log-prob gap| of generator and learner at one version."
    )
    drift_limit: PerStart[float | None] = Field(
        0.5,
        gt=0,
        description="Drift of one of the first 5 measurements (200+ tokens) that stops the run; null: never.",
    )
