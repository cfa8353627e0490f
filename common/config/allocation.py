"""Sampling: batch, groups, limits. Allocation: rule, prior and warm-up."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hora_rl.common.config.base import Count, PerStart, Seconds, Section
from hora_rl.common.wire import MAX_ROLLOUTS

UNIFORM = "uniform"
PLAIN = {"rounds": 1, "stop": "none"}
"""The division under a rule that uses no results."""


class RolloutConfig(Section):
    prompts_per_batch: Count = Field(60, description="Γ: prompts of one optimizer step.")
    group_size: int = Field(
        32, ge=1, le=MAX_ROLLOUTS, description="G: mean rollouts per prompt; a batch has Γ·G by any rule."
    )
    pre_rollouts: int = Field(8, ge=1, description="G0: rollouts of Phase A for every prompt.")
    shards: Count = Field(4, description="Number of shards of a batch. Each is allocated separately.")
    shards_in_flight: PerStart[Count] = Field(8, description="Concurrent shards of one coordinator.")
    max_staleness: int = Field(
        1, ge=0, description="Batch b may start when b <= version + max_staleness. 0: synchronous."
    )
    temperature: float = Field(
        0.7, gt=0, le=2, description="Sampling temperature, in training and evaluation; vLLM takes at most 2."
    )
    max_prompt_tokens: Count = Field(2048, description="Longer prompts are reported and left out.")
    max_response_tokens: Count = Field(2048, description="Completion limit; Z of `constant` normalisation.")
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (),
        description="Further texts that end a completion, of any number of tokens: it is trained up to the "
        "token that completes one, and judged without it. End tokens of the generation configuration, the "
        "tokenizer and the chat template always end one.",
    )
    samples_per_request: PerStart[Count] = Field(
        16, description="Most completions of a request; a larger Δ_i is split, a shard's prompts share one."
    )
    time_limit_s: PerStart[Seconds] = Field(
        600.0, description="Maximum time of one completion. A request is retried after four times as long."
    )
    attempts: PerStart[Count] = Field(20, description="Tries of one request before the run stops.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.pre_rollouts >= self.group_size:
            size = f"rollout.group_size ({self.group_size})"
            raise ValueError(f"rollout.pre_rollouts ({self.pre_rollouts}) must be smaller than {size}")
        if self.prompts_per_batch % self.shards:
            batch = f"rollout.prompts_per_batch ({self.prompts_per_batch})"
            raise ValueError(f"rollout.shards ({self.shards}) must divide {batch}")
        return self

    @property
    def prompts_per_shard(self) -> int:
        return self.prompts_per_batch // self.shards

    @property
    def shard_budget(self) -> int:
        """Phase B rollouts of one shard: (Γ/shards)·(G - G0)."""
        return self.prompts_per_shard * (self.group_size - self.pre_rollouts)

    @property
    def batch_size(self) -> int:
        """Γ·G, the rollouts of a batch."""
        return self.prompts_per_batch * self.group_size

    @property
    def in_flight(self) -> int:
        """Most rollouts that one coordinator samples at a time, within the bound of staleness."""
        shards = min(self.shards_in_flight, self.shards * (1 + self.max_staleness))
        return shards * self.prompts_per_shard * self.group_size


def needs_counts(rule: str) -> bool:
    """Whether a rule uses successes. Only `uniform`, as in GRPO, does not."""
    return rule != UNIFORM


class WarmUpConfig(Section):
    """Uniform allocation until the format is learned (paper, appendix C)."""

    enabled: bool = Field(True, description="Start with plain GRPO (uniform).")
    reward: str = Field(
        "format", description="Reward of the warm-up gate; without the format reward no warm-up by default."
    )
    format_reward: float = Field(0.85, ge=0, le=1, description="Mean of this reward at which the gate opens.")
    cycles: Count = Field(3, description="Consecutive cycles at or above it before HORA takes over.")


class AllocationConfig(Section):
    rule: str = Field(
        "hit_utility",
        description="hit_utility, probe_aware, first_hit, first_hit(K), expected_worth(R, OVERLAP), mixed, "
        "hit_or_miss(WEIGHT), uniform, hard_first, variance, knapsack, ar3po, reinforce_ada, "
        "even_sizes (docs/explanation/method.md), or package.module:function.",
    )
    prior: str = Field(
        "fixed",
        description="fixed (Beta(1, 1)), fixed(ALPHA0, BETA0), empirical, hidden-static, hidden-online, "
        "hidden-dual, mpnet-dual or gp.",
    )
    rounds: Count = Field(
        1, description="R: allocation rounds of Phase B, each by the results of earlier ones; the paper: 1."
    )
    stop: Literal["none", "hit", "mixed"] = Field(
        "none",
        description="hit: prompts with a success get no more rollouts; mixed: those with a success and a "
        "failure get none. Leftover budget goes to all-right prompts until a failure, then by the rule's "
        "gain.",
    )
    max_group_size: Count | None = Field(None, description="Cap on G_i; none by default.")
    prior_state: str | None = Field(None, description="File that `python -m hora_rl.deploy.fit_prior` wrote.")
    features: str | None = Field(
        None,
        description="Sentence-embedding model (name or path) of mpnet-dual and gp; hidden-*: model.path.",
    )
    warmup: WarmUpConfig = WarmUpConfig()

    @model_validator(mode="after")
    def _goes_by_results(self) -> Self:
        for key, unset in PLAIN.items():
            value = getattr(self, key)
            if value != unset and not self.needs_counts:
                raise ValueError(
                    f"allocation.{key} ({value}) goes by results, and allocation.rule: uniform does not: use "
                    f"allocation.rule: even_sizes, or allocation.{key}: {unset}"
                )
        return self

    @property
    def needs_counts(self) -> bool:
        return needs_counts(self.rule)

    def under(self, rule: str) -> AllocationConfig:
        """These settings under `rule`; without counts (`uniform`, before the gate opens) one round, no
        stop."""
        return self.model_copy(update={"rule": rule, **({} if needs_counts(rule) else PLAIN)})
