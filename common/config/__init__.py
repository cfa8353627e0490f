"""The configuration of one experiment: one YAML file for `serve deploy`, the learner and the one-machine run.

Unknown keys and impossible values are refused with the key's path, both values and the reason. Names are the
paper's where it has one: Γ = rollout.prompts_per_batch, G = rollout.group_size, G0 = rollout.pre_rollouts.
"""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from common.config.allocation import Allocation, WarmUp
from common.config.base import Section
from common.config.data import Data, Model, Run
from common.config.learner import Learner, Optimizer, Weights
from common.config.objective import Objective
from common.config.reward import Reward, Verifier
from common.config.rollout import Rollout
from common.config.services import Coordinator, Generator, Queue
from common.config.telemetry import Evaluation, Telemetry

__all__ = [
    "Allocation",
    "Config",
    "Coordinator",
    "Data",
    "Evaluation",
    "Generator",
    "Learner",
    "Model",
    "Objective",
    "Optimizer",
    "Queue",
    "Reward",
    "Rollout",
    "Run",
    "Telemetry",
    "Verifier",
    "WarmUp",
    "Weights",
]


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
        smallest = self.rollout.group_size if self.allocation.rule == "uniform" else self.rollout.pre_rollouts
        if (self.learner.objective.k or 0) > smallest:
            raise ValueError(
                f"learner.objective.k ({self.learner.objective.k}) exceeds the smallest group of rule {self.allocation.rule}, "
                f"{smallest} rollouts: lower k or raise rollout.pre_rollouts"
            )
        cache = self.learner.objective.overlong_cache or 1
        if cache > self.rollout.max_response_tokens:
            raise ValueError(
                f"learner.objective.overlong_cache ({cache}) must be at most rollout.max_response_tokens ({self.rollout.max_response_tokens})"
            )
        cap = self.allocation.max_group_size
        if cap is not None and cap < self.rollout.group_size:
            raise ValueError(
                f"allocation.max_group_size ({cap}) must be at least rollout.group_size ({self.rollout.group_size}), or a batch cannot hold its Γ·G rollouts"
            )
        return self

    @model_validator(mode="after")
    def _successes(self) -> Self:
        rule, weights = self.allocation.rule, ", ".join(self.reward.weights)
        if self.reward.success is None:
            needy = [
                (f"allocation.rule ({rule})", "allocation.rule: uniform", rule != "uniform"),
                (
                    f"allocation.prior ({self.allocation.prior})",
                    "allocation.prior: fixed",
                    self.allocation.prior != "fixed",
                ),
                (
                    f"learner.objective.advantage ({self.learner.objective.advantage})",
                    "learner.objective.advantage: grpo",
                    self.learner.objective.binary,
                ),
                ("evaluation.path (Pass@K)", "evaluation.path: null", self.evaluation.path is not None),
            ]
            for what, otherwise, needs in needy:
                if needs:
                    raise ValueError(
                        f"{what} counts successes, and no reward says what a success is: name one in reward.success "
                        f"(rewards with a weight: {weights}), or set {otherwise}"
                    )
        watched = self.allocation.warmup.reward
        if self.allocation.warmup.enabled and watched != "format" and watched not in self.reward.names:
            raise ValueError(
                f"allocation.warmup.reward ({watched}) is not computed (rewards: {', '.join(self.reward.names)}): give it a "
                "weight, name another, or set allocation.warmup.enabled: false"
            )
        return self

    @property
    def gate(self) -> str | None:
        """The reward that the warm-up gate watches; None where it is open from the start."""
        warmup = self.allocation.warmup
        return warmup.reward if warmup.enabled and warmup.reward in self.reward.names else None

    @property
    def capacity(self) -> int:
        """Untrained groups the queue holds before producers wait."""
        return self.queue.capacity or (self.rollout.max_staleness + 2) * self.rollout.prompts_per_batch
