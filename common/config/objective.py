"""What the learner descends: advantage, ratio and loss, how tokens are added up, weights of groups, regularisers."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import ConfigDict, Field, model_validator

from common.config.base import Count, Section

ADVANTAGES = (
    "grpo",
    "dr_grpo",
    "rloo",
    "max_rl",
    "likelihood",
    "pass_at_k",
    "pkpo",
    "weighted_reinforce",
)
BINARY = ("max_rl", "likelihood", "pass_at_k", "weighted_reinforce")
"""Advantages of successes (`reward.success`); the others take rewards as they are."""


class Objective(Section):
    """L = -(1/Γ) Σ_i (1/G_i) Σ_j (1/Z_ij) Σ_t w_ijt min(ρA, clip(ρ)A) (paper, equation 1 with 1/G_i)."""

    model_config = ConfigDict(
        **Section.model_config, serialize_by_alias=True, validate_by_name=True, validate_by_alias=True
    )

    advantage: str = Field(
        "grpo",
        description=f"{', '.join(ADVANTAGES)}, or package.module:function of (rewards, successes, phases).",
    )
    scale: Literal["group", "batch", "none"] | None = Field(
        None,
        description="What grpo divides by: the group's deviation, that of the batch's rewards, or nothing; unset: group.",
    )
    multi_objective_aggregation: Literal["sum_then_normalize", "normalize_then_sum"] = Field(
        "sum_then_normalize",
        description="Weighted rewards added before they are normalised, or each normalised in its group first (GDPO); the latter with grpo.",
    )
    k: Count | None = Field(None, description="k of pass_at_k and pkpo; at most the smallest possible group.")
    lambda_: float = Field(
        0.1, gt=0, alias="lambda", description="Advantage of a hit under weighted_reinforce; a miss has -1."
    )
    baseline: Literal["none", "wald"] = Field(
        "none",
        description="likelihood only; wald: -1/G for every rollout of every group, which keeps the expectation.",
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

    @model_validator(mode="after")
    def _advantage(self) -> Self:
        name = "learner.objective"
        if self.advantage not in ADVANTAGES and ":" not in self.advantage:
            raise ValueError(
                f"{name}.advantage ({self.advantage}): none of {', '.join(ADVANTAGES)}; a function of your own is package.module:function"
            )
        if (self.k is None) != (self.advantage not in ("pass_at_k", "pkpo")):
            raise ValueError(
                f"{name}.k ({self.k}) belongs to advantage pass_at_k or pkpo, and {name}.advantage is {self.advantage}: "
                + ("set k" if self.k is None else "remove k")
            )
        if self.advantage == "pkpo" and self.k == 1:
            raise ValueError(
                f"{name}.k (1): pkpo takes its baseline from subsets of k - 1, so k must be at least 2; Pass@1 is what rloo maximises"
            )
        if self.baseline != "none" and self.advantage != "likelihood":
            raise ValueError(
                f"{name}.baseline ({self.baseline}) belongs to advantage likelihood, and {name}.advantage is {self.advantage}"
            )
        if self.scale is not None and self.advantage != "grpo":
            raise ValueError(
                f"{name}.scale ({self.scale}) belongs to advantage grpo, and {name}.advantage is {self.advantage}: remove it"
            )
        if self.multi_objective_aggregation == "normalize_then_sum" and (
            self.advantage != "grpo" or self.scale not in (None, "batch")
        ):
            raise ValueError(
                f"{name}.multi_objective_aggregation (normalize_then_sum) needs advantage grpo with scale batch or unset, "
                f"not advantage {self.advantage} with scale {self.scale}"
            )
        return self

    @property
    def binary(self) -> bool:
        """Whether the advantage is one of successes."""
        return self.advantage in BINARY

    @property
    def over_batch(self) -> bool:
        """Whether it needs sums over all groups of a step."""
        return self.scaling == "batch"

    @property
    def scaling(self) -> Literal["group", "batch", "none"]:
        """What `grpo` divides by: GDPO's normalised rewards by their deviation over the batch."""
        gdpo = self.multi_objective_aggregation == "normalize_then_sum"
        return self.scale or ("batch" if gdpo else "group")
