"""Computes the advantages of a group's rollouts: chooses the rewards, successes and formula."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hora_rl.common.advantages import (
    STD_FLOOR,
    Formula,
    Values,
    centred,
    formula,
    grpo,
    rloo_by_phase,
    size_weight,
)
from hora_rl.common.config import Config, ObjectiveConfig
from hora_rl.common.config.objective import GroupWeightConfig
from hora_rl.common.data.rewards import total
from hora_rl.common.errors import RunError
from hora_rl.common.types import Group, Rollout
from hora_rl.common.user_code import is_user_function
from hora_rl.learner.rows.user_advantage import user_advantage
from hora_rl.learner.totals import Totals


@dataclass(frozen=True, slots=True)
class Estimator:
    """Advantages under `objective`.

    `weights` are the rewards' weights, `success` names the reward that decides success (None: no reward
    does), `group_size` is G, `max_response` the longest completion. `totals` are those of the step if the
    objective needs them. `sources` are the estimators of the data sources of a run with several.
    """

    objective: ObjectiveConfig
    weights: Mapping[str, float]
    success: str | None
    group_size: int
    max_response: int
    totals: Totals | None = None
    sources: Mapping[str, Estimator] = field(default_factory=dict)

    def advantages(self, group: Group) -> Values:
        """A (G_i,), times the group's weight."""
        weight = group_weight(group, self.objective.group_weight, self.group_size)
        return self._of(group)._unweighted(group) * weight

    def _of(self, group: Group) -> Estimator:
        """The estimator of the group's source, with the totals of the step."""
        own = self.sources.get(group.source)
        return self if own is None else replace(own, totals=self.totals)

    def _unweighted(self, group: Group) -> Values:
        """A (G_i,) by the formula.

        A formula on successes uses 1 for a success and 0 otherwise. Every other weighted reward is centred in
        the group and added.
        """
        if is_user_function(self.objective.advantage):
            phases = np.array([r.phase for r in group.rollouts])
            return user_advantage(self.objective.advantage, self.rewards(group), successes(group), phases)
        if self.objective.phase_weight == "unbiased":
            return rloo_by_phase(
                self.rewards(group), group.pre_rollouts, group.pre_rollouts / self.group_size
            )
        if not self.objective.binary:
            return self._of_rewards(self.rewards(group))
        others = {name: weight for name, weight in self.weights.items() if name != self.success}
        shaped = centred(_weighted(group, others) - self._overlong(group))
        return self._formula()(successes(group)) + shaped

    def _of_rewards(self, rewards: Values) -> Values:
        scaling = self.objective.scaling
        if self.objective.advantage != "grpo" or scaling == "group":
            return self._formula()(rewards)
        deviation = self.totals.deviation if self.totals else 0.0
        return centred(rewards) / (deviation + STD_FLOOR if scaling == "batch" else 1.0)

    def _formula(self) -> Formula:
        baseline = 1.0 / self.group_size if self.objective.baseline == "wald" else 0.0
        return formula(self.objective.advantage, self.objective.k, baseline, self.objective.lambda_)

    def rewards(self, group: Group) -> Values:
        """R (G_i,): the weighted sum of rewards, optionally each normalised in the group first (GDPO)."""
        if self.objective.multi_objective_aggregation == "sum_then_normalize":
            return _weighted(group, self.weights) - self._overlong(group)
        terms = [
            weight * grpo([r.rewards[name] for r in group.rollouts]) for name, weight in self.weights.items()
        ]
        return np.sum([*terms, grpo(-self._overlong(group))], axis=0)

    def trains(self, rollout: Rollout) -> bool:
        """Whether the rollout's tokens are in the loss. A masked rollout only counts in its group."""
        return not (self.objective.overlong == "mask" and rollout.finish_reason == "length")

    def scale(self, group: Group, rollout: Rollout, prompts: int) -> float:
        """Weight of one token in the loss of a step of `prompts` groups: 1/(Γ G_i Z), or 1/(tokens of the
        step)."""
        if self.objective.aggregate == "token" and self.totals is not None:
            return 1.0 / self.totals.tokens
        z = self.max_response if self.objective.normalisation == "constant" else len(rollout.tokens)
        return 1.0 / (prompts * group.size * z)

    def sums(self, groups: Sequence[Group]) -> Totals:
        """The contribution of `groups` to the totals of their step."""
        values = np.concatenate([np.zeros(0), *(self._of(group).rewards(group) for group in groups)])
        trained = [len(r.tokens) for group in groups for r in group.rollouts if self.trains(r)]
        return Totals(float(sum(trained)), float(len(values)), float(values.sum()), float((values**2).sum()))

    def _overlong(self, group: Group) -> Values:
        """DAPO's soft penalty (2503.14476, equation 13): rises from 0 to 1 over the last tokens before the
        limit."""
        if self.objective.overlong != "soft":
            return np.zeros(group.size)
        cache = self.objective.overlong_cache or max(1, self.max_response // 5)
        lengths = np.array([len(r.tokens) for r in group.rollouts])
        return np.clip((lengths - self.max_response) / cache + 1.0, 0.0, 1.0)


def group_weight(group: Group, weight: GroupWeightConfig, group_size: int) -> float:
    """The factor of the advantages of `group`, with G = `group_size` (`learner.objective.group_weight`).

    Under `grpo` a rare prompt's expected update grows with the root of its group's size. The weights apply
    that without unequal groups, remove that effect, or weight by difficulty: clamp(√(0.12/p̂), 0.7, 3). Raises
    RunError for a group without the size that as_if needs.
    """
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


def successes(group: Group) -> Values:
    """1.0 (G_i,) for each rollout that is a hit."""
    return np.array([r.success for r in group.rollouts], dtype=np.float64)


def _weighted(group: Group, weights: Mapping[str, float]) -> Values:
    return np.array([total(r.rewards, weights) for r in group.rollouts])
