"""The configuration of one experiment: one YAML file for `serve deploy`, the learner and `hora run`.

Unknown keys and invalid values are refused with the key's path, the values and the reason. Names follow the
paper: Γ = rollout.prompts_per_batch, G = rollout.group_size, G0 = rollout.pre_rollouts."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from hora_rl.common.algorithms import loss_of
from hora_rl.common.config.allocation import (
    UNIFORM,
    AllocationConfig,
    RolloutConfig,
    WarmUpConfig,
    needs_counts,
)
from hora_rl.common.config.base import PerPart, PerStart, Section
from hora_rl.common.config.data import DataConfig, ModelConfig, RunConfig, SourceConfig
from hora_rl.common.config.environment import EnvironmentConfig
from hora_rl.common.config.learner import (
    PACKED_BYTES,
    LearnerConfig,
    LoraConfig,
    OptimizerConfig,
    WeightsConfig,
)
from hora_rl.common.config.objective import ObjectiveConfig, check_sampling
from hora_rl.common.config.reward import EPISODE, RewardConfig, VerifierConfig
from hora_rl.common.config.services import (
    LIGHT_CPUS,
    CoordinatorConfig,
    EvaluationConfig,
    GeneratorConfig,
    QueueConfig,
    TelemetryConfig,
)

__all__ = [
    "LIGHT_CPUS",
    "PACKED_BYTES",
    "AllocationConfig",
    "Config",
    "CoordinatorConfig",
    "DataConfig",
    "EnvironmentConfig",
    "EvaluationConfig",
    "GeneratorConfig",
    "LearnerConfig",
    "LoraConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimizerConfig",
    "QueueConfig",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "SourceConfig",
    "TelemetryConfig",
    "VerifierConfig",
    "WarmUpConfig",
    "WeightsConfig",
]


class Config(Section):
    run: RunConfig = RunConfig()
    model: ModelConfig
    data: DataConfig
    rollout: RolloutConfig = RolloutConfig()
    allocation: AllocationConfig = AllocationConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    reward: RewardConfig = RewardConfig()
    generator: PerStart[GeneratorConfig] = GeneratorConfig()
    verifier: PerStart[VerifierConfig] = VerifierConfig()
    coordinator: PerStart[CoordinatorConfig] = CoordinatorConfig()
    queue: PerStart[QueueConfig] = QueueConfig()
    learner: LearnerConfig = LearnerConfig()
    weights: WeightsConfig = WeightsConfig()
    telemetry: PerPart[TelemetryConfig] = TelemetryConfig()
    evaluation: PerStart[EvaluationConfig] = EvaluationConfig()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.learner.tokens_per_microbatch < self.longest:
            raise ValueError(
                f"learner.tokens_per_microbatch ({self.learner.tokens_per_microbatch}) must hold one longest "
                f"completion: {self.longest_in_words}"
            )
        if self.learner.offload_optimizer and self.model.dtype == "float32" and not self.learner.zero_stage:
            raise ValueError(
                "learner.offload_optimizer needs ZeRO, and learner.zero_stage is 0: set it to 1 or more"
            )
        if self.learner.lora is not None:
            self.learner.lora.check_serving(
                self.model.dtype, self.weights.transport, self.generator.clear_cache
            )
        self.generator.check_sharing(self.rollout.max_staleness, self.learner.workers, self.weights.transport)
        check_sampling(self.learner.objective, self.rollout, self.allocation)
        cap = self.allocation.max_group_size
        if cap is not None and cap < self.rollout.group_size:
            least = f"rollout.group_size ({self.rollout.group_size})"
            raise ValueError(f"allocation.max_group_size ({cap}) must be at least {least}")
        rounds, budget = self.allocation.rounds, self.rollout.shard_budget
        if rounds > budget:
            raise ValueError(
                f"allocation.rounds ({rounds}) exceeds the Phase B rollouts of a shard, "
                "(Γ/shards)·(G - G0) = "
                f"{self.rollout.prompts_per_shard}·{self.rollout.group_size - self.rollout.pre_rollouts} = "
                f"{budget}: a round needs at least one"
            )
        return self

    @property
    def source_names(self) -> tuple[str, ...]:
        """Names of the run's data sources; a single empty name for one data set."""
        return tuple(self.data.sources) or ("",)

    @property
    def weights_of_sources(self) -> tuple[float, ...]:
        return tuple(source.weight for source in self.data.sources.values()) or (1.0,)

    def of(self, source: str) -> Config:
        """This configuration with one source's data and rewards. Raises KeyError for an unknown source."""
        if not self.data.sources and not source:
            return self
        rows = self.data.sources[source]
        update = {"data": self.data.of(source), "reward": rows.reward or self.reward}
        return self.model_copy(update=update)

    @property
    def reads_rows(self) -> bool:
        """Whether a reward or the environment may read more of a row than its answer."""
        return self.reward.reads_rows or self.environment.path is not None

    @property
    def evaluated(self) -> Config:
        """This configuration with the data and rewards for held-out problems."""
        return self.of(self.evaluated_source)

    @property
    def evaluated_source(self) -> str:
        """The first source: its columns, messages and rewards are those of held-out problems."""
        return self.source_names[0]

    @property
    def reward_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for s in self.source_names for name in self.of(s).reward.names))

    @model_validator(mode="after")
    def _evaluations(self) -> Self:
        evaluation, best = self.evaluation, self.learner.keep_best
        if evaluation.every is not None and evaluation.path is None:
            every = f"evaluation.every ({evaluation.every})"
            raise ValueError(f"{every} needs held-out problems: name them in evaluation.path")
        if best is not None and evaluation.every is None:
            reason = "compares evaluations during training: set evaluation.every"
            raise ValueError(f"learner.keep_best ({best}) {reason}")
        known = [f"pass@{k}" for k in evaluation.k]
        if best is not None and best not in known:
            measured = f"{', '.join(known)} (evaluation.k)"
            raise ValueError(f"learner.keep_best ({best}) is not measured: choose one of {measured}")
        return self

    @model_validator(mode="after")
    def _successes(self) -> Self:
        for source in self.source_names:
            evaluated = self.evaluation.path is not None and source == self.evaluated_source
            self._counted(self.of(source).reward, evaluated=evaluated)
        watched, computed = self.allocation.warmup.reward, self._in_every_source
        if self.allocation.warmup.enabled and watched != "format" and watched not in computed:
            raise ValueError(
                f"allocation.warmup.reward ({watched}) is not computed"
                f"{' for every source' if self.data.sources else ''} (rewards: {', '.join(computed)}): give "
                "it a weight, name another, or set allocation.warmup.enabled: false"
            )
        return self

    @property
    def _in_every_source(self) -> tuple[str, ...]:
        names = [self.of(source).reward.names for source in self.source_names]
        return tuple(name for name in names[0] if all(name in others for others in names))

    def _counted(self, reward: RewardConfig, *, evaluated: bool) -> None:
        """Raise ValueError if a setting needs successes that do not exist. `evaluated`: for Pass@K."""
        if reward.success is None:
            rule, prior = self.allocation.rule, self.allocation.prior
            objective = self.learner.objective
            weight = objective.group_weight.kind
            counting = [
                ("allocation.rule", rule, UNIFORM, needs_counts(rule)),
                ("allocation.prior", prior, "fixed", not prior.startswith("fixed")),
                ("data.rest", ", ".join(self.data.rest), "[]", bool(self.data.rest)),
                ("learner.objective.advantage", objective.advantage, "grpo", objective.counts),
                ("learner.objective.group_weight", weight, "none", weight in ("difficulty", "as_if")),
                ("evaluation.path", "Pass@K", "null", evaluated),
            ]
            for key, value, otherwise, counts in counting:
                if counts:
                    raise ValueError(
                        f"{key} ({value}) counts successes, and no reward says what a success is: name one "
                        "in reward.success (rewards with a weight: "
                        f"{', '.join(reward.weights)}), or set {key}: {otherwise}"
                    )

    @model_validator(mode="after")
    def _episodes(self) -> Self:
        of_episodes = [name for name in self.reward_names if name.startswith(EPISODE)]
        objective = self.learner.objective
        if self.environment.path is None:
            if of_episodes:
                reward = f"reward {of_episodes[0]!r} is given by an environment"
                raise ValueError(f"{reward}, and environment.path is null: name the environment there")
        elif self.environment.history == "render":
            plain = [name for name in self.source_names if not self.of(name).data.chat]
            if plain:
                key = f"data.sources.{plain[0]}.chat" if plain[0] else "data.chat"
                raise ValueError(
                    f"environment.history (render) shows the chat template, and {key} is false: use append"
                )
            for key, value, per_completion in (
                ("loss", objective.loss, loss_of(objective.loss).per_completion),
                ("importance", objective.importance, objective.importance == "sequence_mask"),
            ):
                if per_completion:
                    raise ValueError(
                        f"learner.objective.{key} ({value}) takes a rollout as one sequence: use "
                        "environment.history: append, or the objective's default"
                    )
        return self

    @property
    def deployments(self) -> tuple[str, ...]:
        """Section names of the application's deployments that have replicas and CPUs."""
        names = ("generator", "verifier", "coordinator")
        return names if self.environment.path is None else (*names, "environment")

    @property
    def reserved_cpus(self) -> float:
        """CPUs that Ray reserves for all replicas and ranks."""
        return self.learner.workers + sum(
            getattr(self, name).replicas * self.cpus(name) for name in self.deployments
        )

    def cpus(self, name: str) -> float:
        """CPUs that Ray reserves per replica of deployment `name`."""
        reserved = {"generator": self.generator.cpus, "verifier": self.verifier.cpus}
        return reserved.get(name, LIGHT_CPUS)

    @property
    def policy(self) -> str:
        """The deployment that samples: `generator`, or `environment`, which calls the generators."""
        return "generator" if self.environment.path is None else "environment"

    @property
    def longest(self) -> int:
        """Maximum tokens of a sequence, for the engine and one micro-batch."""
        between = 0 if self.environment.path is None else self.environment.max_given_tokens
        return self.rollout.max_prompt_tokens + self.rollout.max_response_tokens + between

    @property
    def longest_in_words(self) -> str:
        """The sum for `longest`: keys, values and result."""
        keys = ["rollout.max_prompt_tokens", "rollout.max_response_tokens"]
        values = [self.rollout.max_prompt_tokens, self.rollout.max_response_tokens]
        if self.environment.path is not None:
            keys.append("environment.max_given_tokens")
            values.append(self.environment.max_given_tokens)
        return f"{' + '.join(keys)} = {' + '.join(map(str, values))} = {self.longest}"

    @property
    def gate(self) -> str | None:
        """The reward of the warm-up gate; None if the gate is open from the start."""
        warmup = self.allocation.warmup
        return warmup.reward if warmup.enabled and warmup.reward in self._in_every_source else None

    @property
    def capacity(self) -> int:
        """Untrained groups in the queue at which producers wait. The oldest batch always has room."""
        return (self.rollout.max_staleness + 2) * self.rollout.prompts_per_batch
