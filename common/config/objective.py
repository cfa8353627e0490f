"""The objective: advantage, ratio and loss, token aggregation, group weights, regularisers."""

from typing import Literal, Self

from pydantic import ConfigDict, Field, model_validator

from hora_rl.common.advantages import BINARY, OBJECTIVES, family
from hora_rl.common.config.allocation import AllocationConfig
from hora_rl.common.config.base import Count, Section
from hora_rl.common.config.rollout import RolloutConfig
from hora_rl.common.user_code import is_user_function


class GroupWeightConfig(Section):
    """Factor of a group's advantages, by group size or difficulty. A plain string sets `kind`."""

    kind: Literal["none", "sqrt_size", "inverse_sqrt_size", "difficulty", "as_if"] = Field(
        "none",
        description="√(G_i/G), its inverse, clamp(√(0.12/p̂), 0.7, 3) with p̂ the group's share of "
        "successes, or √(G'_i/G) with the sizes G' of rule as_if.",
    )
    as_if: str | None = Field(
        None,
        description="Rule whose group sizes weight uniformly sampled groups: the control of allocation.",
    )

    @model_validator(mode="before")
    @classmethod
    def _short(cls, values: object) -> object:
        if isinstance(values, str):
            return {"kind": values}
        if isinstance(values, dict) and values.get("as_if") is not None:
            return {"kind": "as_if", **values}
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        name = "learner.objective.group_weight"
        if (self.kind == "as_if") != (self.as_if is not None):
            raise ValueError(
                f"{name}.as_if ({self.as_if}) names the rule of kind as_if, and {name}.kind is {self.kind}: "
                + ("name one, such as hit_utility" if self.as_if is None else "remove one")
            )
        return self


class ObjectiveConfig(Section):
    """L = -(1/Γ) Σ_i (1/G_i) Σ_j (1/Z_ij) Σ_t w_ijt min(ρA, clip(ρ)A) (paper, equation 1 with 1/G_i).

    Keys and values have TRL's names if they exist; docs/reference/objectives.md maps the rest."""

    model_config = ConfigDict(
        **Section.model_config, serialize_by_alias=True, validate_by_name=True, validate_by_alias=True
    )

    advantage: str = Field(
        "grpo",
        description=f"{', '.join(OBJECTIVES)}(R, OVERLAP), or package.module:function of (rewards, "
        "successes, phases).",
    )
    scale: Literal["group", "batch", "none"] | None = Field(
        None,
        description="Divisor of grpo: the group's deviation, that of the batch's rewards, or none; unset: "
        "group.",
    )
    multi_objective_aggregation: Literal["sum_then_normalize", "normalize_then_sum"] = Field(
        "sum_then_normalize",
        description="Add weighted rewards before normalising, or normalise each in its group first (GDPO); "
        "the latter with grpo.",
    )
    k: Count | None = Field(None, description="k of pass_at_k and pkpo; at most the smallest possible group.")
    lambda_: float = Field(
        0.1, gt=0, alias="lambda", description="Advantage of a hit under weighted_reinforce; a miss has -1."
    )
    baseline: Literal["none", "wald"] = Field(
        "none",
        description="likelihood only; wald: -1/G for every rollout of every group, which keeps the "
        "expectation.",
    )
    group_weight: GroupWeightConfig = GroupWeightConfig()
    phase_weight: Literal["pooled", "unbiased"] = Field(
        "pooled",
        description="Both phases as one group (the paper), or each with its budget share under uniform "
        "sampling, which keeps rloo's expectation although Phase A determines Phase B's size; in one round.",
    )
    aggregate: Literal["group", "token"] = Field(
        "group",
        description="group: 1/G_i and 1/Z, equal prompts (the paper); token: equal tokens over the batch "
        "(DAPO).",
    )
    normalisation: Literal["constant", "sequence", "none"] = Field(
        "constant",
        description="Z of aggregate group: max_response_tokens (Dr.GRPO) or the completion's length; none "
        "for aggregate token.",
    )
    overlong: Literal["keep", "mask", "soft"] = Field(
        "keep",
        description="A completion cut at its limit is trained; masked from the loss, though it counts in "
        "G_i, its group's mean and the posterior; or penalised by up to 1 over the last overlong_cache "
        "tokens before max_response_tokens (DAPO).",
    )
    overlong_cache: Count | None = Field(
        None, description="Tokens over which the soft penalty grows; unset: a fifth of max_response_tokens."
    )
    ratio: Literal["token", "sequence"] = Field(
        "token",
        description="ρ of each token, or the geometric mean over the completion for all its tokens (GSPO).",
    )
    loss: Literal["clip", "cispo", "sapo"] = Field(
        "clip",
        description="min(ρA, clip(ρ)A); ρ bounded above and detached in A log π (CISPO); a sigmoid around ρ "
        "= 1 (SAPO).",
    )
    clip_low: float = Field(0.2, ge=0, lt=1, description="ρ is clipped to at least 1 - clip_low.")
    clip_high: float = Field(0.2, ge=0, description="ρ is clipped to at most 1 + clip_high.")
    clip_dual: float | None = Field(
        None,
        gt=1,
        description="Maximum ρ under clip if A is negative, above 1 + clip_high (TRL's delta); none: "
        "unbounded.",
    )
    importance: Literal["token_truncate", "token_mask", "sequence_mask", "none"] = Field(
        "token_truncate", description="Correction of π_prox/π_gen."
    )
    importance_cap: float = Field(3.0, gt=0, description="C of the correction.")
    kl: float = Field(0.0, ge=0, description="Coefficient of the KL estimate to the frozen initial policy.")
    kl_estimator: Literal["k1", "k2", "k3"] = Field(
        "k3", description="With d = log π_ref/π: -d (zero expected gradient), d²/2, or exp(d) - d - 1."
    )
    entropy_coef: float = Field(0.0, ge=0, description="Coefficient of the bonus for mean token entropy.")
    top_entropy_quantile: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of the batch's trained tokens, those with the highest entropy, in the loss; below "
        "1 costs a forward pass.",
    )
    updates_per_batch: Count = Field(1, description="Updates on one batch; above 1, π_prox is recomputed.")

    @model_validator(mode="before")
    @classmethod
    def _lengths(cls, values: object) -> object:
        """Default Z for `aggregate: token`, which has none."""
        if isinstance(values, dict) and values.get("aggregate") == "token":
            return {"normalisation": "none", **values}
        return values

    @model_validator(mode="after")
    def _loss(self) -> Self:
        name = "learner.objective"
        if (self.normalisation == "none") != (self.aggregate == "token"):
            raise ValueError(
                f"{name}.normalisation ({self.normalisation}) contradicts {name}.aggregate "
                f"({self.aggregate}): token needs none, group needs constant or sequence"
            )
        if self.aggregate == "token" and self.family in ("dr_grpo", "likelihood", "pkpo", "shrunken"):
            remedy = "grpo with scale none" if self.advantage == "dr_grpo" else "aggregate group"
            raise ValueError(
                f"{name}.aggregate (token) divides by the batch's tokens, and {name}.advantage "
                f"({self.advantage}) has another divisor: use {remedy}"
            )
        if self.clip_dual is not None and (self.loss != "clip" or self.clip_dual <= 1 + self.clip_high):
            raise ValueError(
                f"{name}.clip_dual ({self.clip_dual}) belongs to loss clip and must exceed 1 + clip_high = "
                f"{1 + self.clip_high}, and {name}.loss is {self.loss}"
            )
        return self

    @model_validator(mode="after")
    def _belonging(self) -> Self:
        """Refuse keys whose advantage or overlong rule is not chosen."""
        name = "learner.objective"
        keys = (
            ("k", None, "advantage", ("pass_at_k", "pkpo")),
            ("scale", None, "advantage", ("grpo",)),
            ("baseline", "none", "advantage", ("likelihood",)),
            ("overlong_cache", None, "overlong", ("soft",)),
        )
        for key, unset, of, allowed in keys:
            value, chosen = getattr(self, key), getattr(self, of)
            if value != unset and chosen not in allowed:
                home = f"{of} {' or '.join(allowed)}"
                raise ValueError(
                    f"{name}.{key} ({value}) belongs to {home}, and {name}.{of} is {chosen}: remove {key}"
                )
        return self

    @model_validator(mode="after")
    def _advantage(self) -> Self:
        name = "learner.objective"
        if self.family not in OBJECTIVES and not is_user_function(self.advantage):
            raise ValueError(
                f"{name}.advantage ({self.advantage}): none of {', '.join(OBJECTIVES)}; a function of your "
                "own is package.module:function"
            )
        if self.k is None and self.advantage in ("pass_at_k", "pkpo"):
            raise ValueError(f"{name}.k (None) belongs to advantage pass_at_k or pkpo: set k")
        if self.advantage == "pkpo" and self.k == 1:
            raise ValueError(f"{name}.k (1): pkpo takes its baseline from subsets of k - 1: use 2, or rloo")
        if self.phase_weight == "unbiased" and (self.advantage != "rloo" or self.aggregate != "group"):
            raise ValueError(
                f"{name}.phase_weight (unbiased) needs advantage rloo with aggregate group, whose "
                f"expectation it keeps, not {self.advantage} with {self.aggregate}"
            )
        if self.multi_objective_aggregation == "normalize_then_sum" and (
            self.advantage != "grpo" or self.scale not in (None, "batch")
        ):
            raise ValueError(
                f"{name}.multi_objective_aggregation (normalize_then_sum) needs advantage grpo with scale "
                f"batch or unset, not advantage {self.advantage} with scale {self.scale}"
            )
        return self

    @property
    def binary(self) -> bool:
        """Whether the advantage is computed from successes."""
        return self.family in BINARY

    @property
    def family(self) -> str:
        """The advantage's name without numbers."""
        return family(self.advantage)

    @property
    def rewards_entropy(self) -> bool:
        """Whether there is an entropy bonus."""
        return self.entropy_coef > 0.0

    @property
    def over_batch(self) -> bool:
        """Whether the objective needs sums over all groups of a step."""
        return self.scaling == "batch" or self.aggregate == "token"

    @property
    def scaling(self) -> Literal["group", "batch", "none"]:
        """Divisor of `grpo`. For GDPO it is the deviation over the batch."""
        gdpo = self.multi_objective_aggregation == "normalize_then_sum"
        return self.scale or ("batch" if gdpo else "group")


NO_MARGINAL_GAIN = ("hard_first", "even_sizes", "knapsack", "reinforce_ada", "ar3po")
"""Rules without a marginal gain. They guarantee no prompt a rollout."""


def check_sampling(objective: ObjectiveConfig, rollout: RolloutConfig, allocation: AllocationConfig) -> None:
    """Raise ValueError if the sampling settings do not fit the objective."""
    name, rule = "learner.objective", allocation.rule
    smallest = rollout.pre_rollouts if allocation.needs_counts else rollout.group_size
    if (objective.k or 0) > smallest:
        raise ValueError(
            f"{name}.k ({objective.k}) exceeds the smallest group of rule {rule}, {smallest} rollouts: lower "
            "k or raise rollout.pre_rollouts"
        )
    if objective.advantage == "pass_at_k" and objective.k == rollout.group_size:
        raise ValueError(
            f"{name}.k ({objective.k}) is the size of every group of rule {rule}: each has one subset of k, "
            "and no rollout an advantage: lower k"
        )
    cache = objective.overlong_cache or 1
    if cache > rollout.max_response_tokens:
        most = f"rollout.max_response_tokens ({rollout.max_response_tokens})"
        raise ValueError(f"{name}.overlong_cache ({cache}) must be at most {most}")
    if objective.group_weight.as_if is not None and allocation.needs_counts:
        raise ValueError(
            f"{name}.group_weight.as_if ({objective.group_weight.as_if}) weights uniform sampling, and "
            f"allocation.rule is {rule}: set allocation.rule: uniform"
        )
    if objective.phase_weight == "unbiased" and rollout.pre_rollouts < 2:
        raise ValueError(f"{name}.phase_weight (unbiased): rollout.pre_rollouts is 1: use at least 2")
    if objective.phase_weight == "unbiased":
        _check_phase_b_of_every_prompt(rollout, allocation)


def _check_phase_b_of_every_prompt(rollout: RolloutConfig, allocation: AllocationConfig) -> None:
    """Raise ValueError if a prompt may get no Phase B rollout: the objective weights phases separately."""
    name, rule, budget = "learner.objective.phase_weight (unbiased)", allocation.rule, rollout.shard_budget
    if allocation.stop != "none" or allocation.budget == "tokens" or rule.startswith(NO_MARGINAL_GAIN):
        raise ValueError(
            f"{name} needs a Phase B of every prompt, and rule {rule} with stop {allocation.stop} and budget "
            f"{allocation.budget} leaves some without: use pooled, or advantage likelihood"
        )
    if allocation.rounds > 1:
        raise ValueError(
            f"{name} needs sizes that depend only on Phase A, not allocation.rounds {allocation.rounds}: use "
            "allocation.rounds: 1, or advantage likelihood"
        )
    if rollout.prompts_per_shard > budget:
        raise ValueError(
            f"{name} needs one Phase B rollout of every prompt, and there are {budget} for "
            f"{rollout.prompts_per_shard} prompts: raise rollout.group_size"
        )
