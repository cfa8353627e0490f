"""Rule, prior and warm-up."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from hora_rl.common.config.base import Count, Section

UNIFORM = "uniform"
PLAIN = {"rounds": 1, "stop": "none"}
"""The division under a rule that uses no results."""


def needs_counts(rule: str) -> bool:
    """Whether a rule uses successes. Only `uniform`, as in GRPO, does not."""
    return rule != UNIFORM


class WarmUpConfig(Section):
    """Uniform allocation until the format is learned (paper, appendix C)."""

    enabled: bool = Field(True, description="Start with plain GRPO (uniform).")
    reward: str = Field(
        "format",
        description="Reward of the warm-up gate. Without the format reward there is no warm-up by default.",
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
        1,
        description="R: allocation rounds of Phase B. Each uses the results of earlier ones. The paper uses "
        "1.",
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
        description="Sentence-embedding model (name or path) for mpnet-dual and gp; hidden-* use model.path.",
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
