"""The gradient of a batch is the formula's, and that of every option the one of a single micro-batch, however
the batch is cut and shared out."""

from typing import Any

import numpy as np
import pytest
import torch

from hora_rl.common.config import Objective
from hora_rl.common.types import Group
from hora_rl.learner.batch import samples_of
from hora_rl.learner.estimator import Estimator
from hora_rl.learner.logprobs import Policy
from hora_rl.learner.prefixes import Sharing
from tests.support.formula import apart, by_cut, by_formula
from tests.support.groups import group, rollout
from tests.support.sharing import ALWAYS
from tests.support.tiny_qwen2 import tiny_qwen2

LONGEST, VOCABULARY, TEMPERATURE = 40, 64, 0.7
Cut = tuple[int, Sharing | None, int]  # tokens of a micro-batch, sharing of prompts, ranks


def ragged(rng: np.random.Generator, index: int, size: int, pre_rollouts: int = 1) -> Group:
    """A group of `size` rollouts, with signal where it has several."""
    rollouts = []
    for j in range(size):
        n, right = int(rng.integers(1, LONGEST + 1)), j == 0 or bool(rng.random() < 0.4)
        rollouts.append(
            rollout(
                rng.integers(0, VOCABULARY, n),
                logprobs=-rng.exponential(4.0, n),
                finish_reason="length" if n > 30 else "stop",
                phase="A" if j < pre_rollouts else "B",
                rewards={"accuracy": float(right), "format": float(rng.random())},
                success=right,
            )
        )
    prompt = rng.integers(0, VOCABULARY, int(rng.integers(1, 9)))
    return group(index, rollouts, prompt=prompt, pre_rollouts=pre_rollouts, size_as_if=size + index)


def batch(*sizes: int) -> list[Group]:
    """Groups of these sizes, and one without signal."""
    rng = np.random.default_rng(0)
    return [ragged(rng, i, n) for i, n in enumerate(sizes)] + [group(9, [rollout([3] * n) for n in (4, 9)])]


def policy() -> Policy:
    return Policy(tiny_qwen2(VOCABULARY))


def estimator(**objective: Any) -> Estimator:
    weights = {"accuracy": 0.6, "format": 0.4}
    return Estimator(Objective.model_validate(objective), weights, "accuracy", 4, LONGEST)


BATCH = batch(1, 2, 5, 23, 60)


@pytest.fixture(scope="module")
def expected() -> torch.Tensor:
    return by_formula(policy(), BATCH, estimator(), TEMPERATURE)


@pytest.mark.parametrize(
    "cut",
    [
        *((budget, sharing, 1) for budget in (48, 100, 777, 100_000) for sharing in (None, ALWAYS)),
        (300, ALWAYS, 2),
        (300, ALWAYS, 4),
    ],
)
def test_the_gradient_does_not_depend_on_micro_batches_or_ranks(cut: Cut, expected: torch.Tensor) -> None:
    assert apart(by_cut(policy(), BATCH, estimator(), TEMPERATURE, *cut), expected) < 1e-5


@pytest.mark.parametrize("advantage", ["grpo", "dr_grpo", "rloo"])
@pytest.mark.parametrize("normalisation", ["constant", "sequence"])
@pytest.mark.parametrize("importance", ["token_truncate", "token_mask", "sequence_mask", "none"])
def test_every_estimator_is_its_formula(advantage: str, normalisation: str, importance: str) -> None:
    chosen = estimator(advantage=advantage, normalisation=normalisation, importance=importance)
    groups = batch(1, 2, 5)
    wanted = by_formula(policy(), groups, chosen, TEMPERATURE)
    assert apart(by_cut(policy(), groups, chosen, TEMPERATURE, 300, ALWAYS), wanted) < 1e-5


def test_groups_of_one_and_of_equal_rewards_contribute_exactly_nothing() -> None:
    assert samples_of(batch(1), estimator(), 2, version=0) == []


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


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_no_option_depends_on_the_cut_or_on_the_ranks(options: dict[str, Any]) -> None:
    chosen, rng = estimator(**options), np.random.default_rng(0)
    smallest = 2 if chosen.objective.phase_weight == "pooled" else 3  # one without a Phase B, where it may be
    groups = [ragged(rng, i, size, pre_rollouts=2) for i, size in enumerate((smallest, 3, 9, 4))]

    def gradient(*cut: Any) -> torch.Tensor:
        model = policy()
        model.head.entropy_gradient = chosen.objective.rewards_entropy
        return by_cut(model, groups, chosen, TEMPERATURE, *cut)

    whole = gradient(100_000, None, 1)
    assert whole.norm() > 0
    for cut in ((60, None, 2), (90, ALWAYS, 4), (1000, ALWAYS, 1)):
        assert apart(gradient(*cut), whole) < 1e-5, cut
