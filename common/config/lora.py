"""Low-rank adapters (LoRA), trained instead of the full weights."""

import math

from pydantic import Field, field_validator

from hora_rl.common.config.base import Count, Section

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
