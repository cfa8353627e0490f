"""The gradient of every option is that of one micro-batch on one rank, however groups are cut and shared
out."""

from typing import Any

import numpy as np
import pytest
import torch

from hora_rl.common.config import Objective
from hora_rl.common.types import Group
from hora_rl.learner.estimator import Estimator
from hora_rl.learner.logprobs import Policy
from hora_rl.learner.prefixes import Sharing
from tests.support.formula import apart, by_cut
from tests.support.groups import group, rollout
from tests.support.sharing import ALWAYS
from tests.support.tiny_qwen2 import tiny_qwen2

LONGEST, VOCABULARY, G, G0 = 24, 48, 4, 2
WEIGHTS = {"accuracy": 0.6, "format": 0.4}
OPTIONS: list[dict[str, Any]] = [
    {"advantage": "max_rl"},
    {"advantage": "likelihood", "baseline": "wald"},
    {"advantage": "pass_at_k", "k": 2},
    {"advantage": "pkpo", "k": 2},
    {"advantage": "weighted_reinforce"},
    {"advantage": "rloo", "phase_weight": "unbiased"},
    {"scale": "batch"},
    {"multi_objective_aggregation": "normalize_then_sum"},
    {"aggregate": "token"},
    {"aggregate": "token", "overlong": "mask"},
    {"overlong": "soft", "overlong_cache": 10},
    {"group_weight": "sqrt_size"},
    {"group_weight": "inverse_sqrt_size"},
    {"group_weight": "difficulty"},
    {"group_weight": {"as_if": "hit_utility"}},
    {"loss": "cispo", "aggregate": "token"},
    {"loss": "sapo", "normalisation": "sequence"},
    {"ratio": "sequence", "normalisation": "sequence"},
    {"entropy_coef": 0.1},
    {"top_entropy_quantile": 0.3},
    {"top_entropy_quantile": 0.3, "entropy_coef": 0.1, "overlong": "mask"},
]


def ragged_groups(objective: Objective) -> list[Group]:
    """One of them without a Phase B, where the objective allows it."""
    rng = np.random.default_rng(0)
    smallest = G0 if objective.phase_weight == "pooled" else G0 + 1
    return [ragged(rng, i, size) for i, size in enumerate((smallest, 3, 9, 4))]


def ragged(rng: np.random.Generator, index: int, size: int) -> Group:
    rollouts = []
    for j in range(size):
        n = int(rng.integers(1, LONGEST + 1))
        right = j == 0 or bool(rng.random() < 0.4)
        rollouts.append(
            rollout(
                rng.integers(0, VOCABULARY, n),
                logprobs=-rng.exponential(3.0, n),
                finish_reason="length" if n > 18 else "stop",
                phase="A" if j < G0 else "B",
                success=right,
                rewards={"accuracy": float(right), "format": float(rng.random())},
            )
        )
    prompt = rng.integers(0, VOCABULARY, 4)
    return group(index, rollouts, pre_rollouts=G0, prompt=prompt, size_as_if=size + index)


def gradient(objective: Objective, budget: int, sharing: Sharing | None, ranks: int) -> torch.Tensor:
    model = Policy(tiny_qwen2(VOCABULARY, num_hidden_layers=1))
    model.head.entropy_gradient = objective.rewards_entropy
    estimator = Estimator(objective, WEIGHTS, "accuracy", G, LONGEST)
    return by_cut(model, ragged_groups(objective), estimator, 0.7, budget, sharing, ranks)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_no_option_depends_on_the_cut_or_on_the_ranks(options: dict[str, Any]) -> None:
    objective = Objective.model_validate(options)
    whole = gradient(objective, 100_000, None, 1)
    assert whole.norm() > 0
    for budget, sharing, ranks in ((40, None, 2), (90, ALWAYS, 4), (1000, ALWAYS, 1)):
        other = gradient(objective, budget, sharing, ranks)
        assert apart(other, whole) < 1e-5, (budget, sharing, ranks)
