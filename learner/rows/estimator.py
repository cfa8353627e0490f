"""The advantages of a group's rollouts, and the weight of each token in the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hora_rl.common.advantages import formula, size_weight
from hora_rl.common.algorithms import advantage_of
from hora_rl.common.algorithms.base import Algorithm, Values, centred
from hora_rl.common.config import Config, ObjectiveConfig
from hora_rl.common.config.objective import GroupWeightConfig
from hora_rl.common.data.rewards import total
from hora_rl.common.errors import ConfigError, RunError
from hora_rl.common.types import Group, Rollout
from hora_rl.common.user_code import is_user_function


@dataclass(frozen=True, slots=True)
class Estimator:
    """Advantages under `objective`.

    `weights` are the rewards' weights, `success` names the reward that decides success (None: no reward
    does), `group_size` is G, `max_response` the longest completion. `tokens` are the trained tokens of the
    step, which `normalisation: token` needs. `sources` are the estimators of the data sources of a run with
    several."""

    objective: ObjectiveConfig
    weights: Mapping[str, float]
    success: str | None
    group_size: int
    max_response: int
    tokens: float | None = None
    sources: Mapping[str, Estimator] = field(default_factory=dict)

    def advantages(self, group: Group) -> Values:
        """A (G_i,), times the group's weight. Raises ConfigError for a user's that is not n finite
        numbers."""
        weight = group_weight(group, self.objective.group_weight, self.group_size)
        return self.sources.get(group.source, self)._unweighted(group) * weight

    def _unweighted(self, group: Group) -> Values:
        """A (G_i,) by the formula. One on successes takes 0 and 1; every other weighted reward is centred in
        the group and added."""
        algorithm = advantage_of(self.objective.advantage)
        successes = np.array([r.success for r in group.rollouts], dtype=np.float64)
        phases = np.array([r.phase for r in group.rollouts])
        advantage = self._formula(algorithm, self.rewards(group), successes, phases)
        if not algorithm.counts:
            return advantage
        return advantage + centred(self.rewards(group, without=self.success))

    def _formula(
        self, algorithm: Algorithm, rewards: Values, successes: Values, phases: NDArray[np.str_]
    ) -> Values:
        name = self.objective.advantage
        if algorithm.user_advantage is not None:
            return _finite(name, algorithm.user_advantage(rewards, successes, phases), rewards)
        baseline = 1.0 / self.group_size if self.objective.baseline == "wald" else 0.0
        of_group = formula(algorithm, self.objective.k, baseline)
        result = of_group(successes if algorithm.counts else rewards)
        return _finite(name, result, rewards) if is_user_function(name) else result

    def try_advantage(self, pre_rollouts: int) -> None:
        """Compute a user's advantage of groups that every run meets: none, one, all hits. Raises
        ConfigError."""
        algorithm = advantage_of(self.objective.advantage)
        if algorithm.counts and self.success is None:
            raise ConfigError(
                f"learner.objective.advantage ({self.objective.advantage}) counts successes, and no reward "
                "says what a success is: name one in reward.success"
            )
        for size in (pre_rollouts, self.group_size):
            phases = np.array(["A"] * pre_rollouts + ["B"] * (size - pre_rollouts))
            for hits in (0, 1, size):
                successes = (np.arange(size) < hits).astype(np.float64)
                self._formula(algorithm, successes.copy(), successes, phases)

    def rewards(self, group: Group, without: str | None = None) -> Values:
        """R (G_i,): the weighted sum of the rewards but `without`, less the penalty of long completions."""
        weights = {name: weight for name, weight in self.weights.items() if name != without}
        return np.array([total(r.rewards, weights) for r in group.rollouts]) - self._overlong(group)

    def trains(self, rollout: Rollout) -> bool:
        """Whether the rollout's tokens are in the loss. A masked rollout only counts in its group."""
        return not (self.objective.overlong == "mask" and rollout.finish_reason == "length")

    def scale(self, group: Group, rollout: Rollout, prompts: int) -> float:
        """Weight of a token in the loss of `prompts` groups: 1/(Γ G_i Z), or 1/(tokens of the step)."""
        if self.objective.normalisation == "token" and self.tokens is not None:
            return 1.0 / self.tokens
        z = self.max_response if self.objective.normalisation == "constant" else len(rollout.tokens)
        return 1.0 / (prompts * group.size * z)

    def trained_tokens(self, groups: Sequence[Group]) -> float:
        """The part of `groups` in the trained tokens of their step."""
        return float(sum(len(r.tokens) for group in groups for r in group.rollouts if self.trains(r)))

    def _overlong(self, group: Group) -> Values:
        """DAPO's soft penalty (2503.14476, equation 13): from 0 to 1 over the last fifth before the limit."""
        if self.objective.overlong != "soft":
            return np.zeros(group.size)
        cache = max(1, self.max_response // 5)
        lengths = np.array([len(r.tokens) for r in group.rollouts])
        return np.clip((lengths - self.max_response) / cache + 1.0, 0.0, 1.0)


def _finite(name: str, advantage: ArrayLike, rewards: Values) -> Values:
    """A user's advantages (n,). Raises ConfigError if they are not n finite numbers."""
    where = f"learner.objective.advantage ({name})"
    try:
        values = np.asarray(advantage, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"{where}: returned a {type(advantage).__name__}, not numbers") from None
    if values.shape != rewards.shape:
        raise ConfigError(
            f"{where}: returned shape {values.shape} for a group of {len(rewards)} rollouts; it must be "
            f"({len(rewards)},)"
        )
    if not np.isfinite(values).all():
        index = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ConfigError(
            f"{where}: returned {values[index]} for rollout {index} of a group of {len(rewards)} with "
            f"rewards {rewards[:8].tolist()}; advantages must be finite"
        )
    return values


def group_weight(group: Group, weight: GroupWeightConfig, group_size: int) -> float:
    """The factor of the advantages of `group`, with G = `group_size` (`learner.objective.group_weight`).

    Under `grpo` a rare prompt's expected update grows with the root of its group's size. The weights apply
    that without unequal groups, remove that effect, or weight by difficulty: clamp(√(0.12/p̂), 0.7, 3). Raises
    RunError for a group without the size that as_if needs."""
    if weight.kind == "sqrt_size":
        return float(size_weight(group.size, group_size))
    if weight.kind == "inverse_sqrt_size":
        return 1.0 / float(size_weight(group.size, group_size))
    if weight.kind == "difficulty":
        rate = group.hits / group.size
        return min(3.0, max(0.7, (0.12 / rate) ** 0.5)) if rate else 3.0
    if weight.kind == "as_if":
        if not group.size_as_if:
            raise RunError(
                f"group {group.id} does not say its size under rule {weight.as_if} "
                "(learner.objective.group_weight.as_if): it was sampled under another configuration"
            )
        return float(size_weight(group.size_as_if, group_size))
    return 1.0


def estimator_of(config: Config) -> Estimator:
    rollout = config.rollout
    return Estimator(
        config.learner.objective,
        config.reward.weights,
        config.reward.success,
        rollout.group_size,
        rollout.max_response_tokens,
        sources={source: estimator_of(config.of(source)) for source in config.data.sources},
    )
