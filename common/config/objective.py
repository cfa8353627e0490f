"""The objective: an advantage and a token loss by name, and the keys that all of them share."""

from typing import Literal, Self

from pydantic import Field, model_validator

from hora_rl.common.algorithms import ADVANTAGES, LOSSES, advantage_of, loss_of
from hora_rl.common.algorithms.base import Algorithm
from hora_rl.common.config.allocation import AllocationConfig, RolloutConfig
from hora_rl.common.config.base import Count, Section
from hora_rl.common.user_code import is_user_function

NAME = "learner.objective"


class GroupWeightConfig(Section):
    """Factor of a group's advantages, by group size or difficulty. A plain string sets `kind`."""

    kind: Literal["none", "sqrt_size", "inverse_sqrt_size", "difficulty", "as_if"] = Field(
        "none",
        description="√(G_i/G), its inverse, clamp(√(0.12/p̂), 0.7, 3) with p̂ the group's share of "
        "successes, or √(G'_i/G) with the sizes G' of rule as_if.",
    )
    as_if: str | None = Field(
        None, description="Rule whose group sizes weight uniformly sampled groups: the allocation's control."
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
        if (self.kind == "as_if") != (self.as_if is not None):
            raise ValueError(
                f"{NAME}.group_weight.as_if ({self.as_if}) names the rule of kind as_if, and "
                f"{NAME}.group_weight.kind is {self.kind}: "
                + ("name one, such as hit_utility" if self.as_if is None else "remove one")
            )
        return self


class ObjectiveConfig(Section):
    """L = -(1/Γ) Σ_i (1/G_i) Σ_j (1/Z_ij) Σ_t w_ijt min(ρA, clip(ρ)A) (paper, equation 1 with 1/G_i).

    `common/algorithms/` has one file for each advantage and loss. A loss sets defaults of other keys."""

    advantage: str = Field(
        "grpo",
        description=f"{', '.join(ADVANTAGES)}, where shrunken takes numbers (R, OVERLAP); or "
        "package.module:NAME of an Algorithm or of a function of (rewards, successes, phases).",
    )
    k: Count | None = Field(None, description="k of pass_at_k and pkpo; at most the smallest possible group.")
    baseline: Literal["none", "wald"] = Field(
        "none", description="likelihood only; wald: -1/G for every rollout, which keeps the expectation."
    )
    group_weight: GroupWeightConfig = GroupWeightConfig()
    loss: str = Field(
        "clip", description=f"{', '.join(LOSSES)}; or package.module:NAME of an Algorithm or token loss."
    )
    clip_low: float = Field(0.2, ge=0, lt=1, description="ρ is clipped to at least 1 - clip_low.")
    clip_high: float = Field(0.2, ge=0, description="ρ is clipped to at most 1 + clip_high.")
    normalisation: Literal["constant", "sequence", "token"] = Field(
        "constant",
        description="Z: max_response_tokens (Dr.GRPO) or the completion's length; token: in place of 1/G_i "
        "and 1/Z equal tokens over the batch (DAPO).",
    )
    overlong: Literal["keep", "mask", "soft"] = Field(
        "keep",
        description="A completion cut at its limit is trained; masked from the loss, though it counts in "
        "G_i, its group's mean and the posterior; or penalised by up to 1 over the last fifth of "
        "max_response_tokens (DAPO).",
    )
    importance: Literal["token_truncate", "token_mask", "sequence_mask", "none"] = Field(
        "token_truncate", description="Correction of π_prox/π_gen."
    )
    importance_cap: float = Field(3.0, gt=0, description="C of the correction.")
    kl: float = Field(0.0, ge=0, description="Coefficient of the KL (k3) to the initial policy.")
    updates_per_batch: Count = Field(1, description="Updates on one batch; above 1, π_prox is recomputed.")

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_loss(cls, values: object) -> object:
        """A dump has every key, so reading one imports no user's file."""
        if not isinstance(values, dict) or values.keys() >= cls.model_fields.keys():
            return values
        loss = values.get("loss", "clip")
        return {**_named("loss", loss).defaults, **values} if isinstance(loss, str) else values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Refuse keys that the advantage does not have. A user's is not imported for that."""
        if is_user_function(self.advantage):
            return self
        algorithm = _named("advantage", self.advantage)
        chosen = f"and {NAME}.advantage is {self.advantage}"
        for wrong, reason in (
            (
                self.k is not None and not algorithm.least_k,
                f"{NAME}.k ({self.k}) belongs to advantage pass_at_k or pkpo, {chosen}: remove k",
            ),
            ((self.k or 0) < algorithm.least_k, f"{NAME}.k ({self.k}): must be at least {algorithm.least_k}"),
            (
                self.baseline != "none" and not algorithm.has_baseline,
                f"{NAME}.baseline ({self.baseline}) belongs to likelihood, {chosen}: remove baseline",
            ),
            (
                self.normalisation == "token" and algorithm.per_group,
                f"{NAME}.normalisation (token) divides by the batch's tokens, {chosen}, which has another "
                "divisor: use constant or sequence",
            ),
        ):
            if wrong:
                raise ValueError(reason)
        return self

    @property
    def counts(self) -> bool:
        """Whether the advantage is computed from successes. A user's is assumed not to be."""
        return not is_user_function(self.advantage) and advantage_of(self.advantage).counts


def _named(part: Literal["advantage", "loss"], name: str) -> Algorithm:
    """Raises ValueError that names the key."""
    try:
        return (advantage_of if part == "advantage" else loss_of)(name)
    except ValueError as error:
        raise ValueError(f"{NAME}.{part}: {str(error).removeprefix(f'{NAME}.{part}: ')}") from None


def check_sampling(objective: ObjectiveConfig, rollout: RolloutConfig, allocation: AllocationConfig) -> None:
    """Raise ValueError if the sampling settings do not fit the objective."""
    rule = allocation.rule
    smallest = rollout.pre_rollouts if allocation.needs_counts else rollout.group_size
    if (objective.k or 0) > smallest:
        raise ValueError(
            f"{NAME}.k ({objective.k}) exceeds the smallest group of rule {rule}, {smallest} rollouts: lower "
            "k or raise rollout.pre_rollouts"
        )
    if objective.advantage == "pass_at_k" and objective.k == rollout.group_size:
        raise ValueError(
            f"{NAME}.k ({objective.k}) is the size of every group of rule {rule}: each has one subset of k, "
            "and no rollout an advantage: lower k"
        )
    if objective.group_weight.as_if is not None and allocation.needs_counts:
        raise ValueError(
            f"{NAME}.group_weight.as_if ({objective.group_weight.as_if}) weights uniform sampling, and "
            f"allocation.rule is {rule}: set allocation.rule: uniform"
        )
