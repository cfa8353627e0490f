"""The gradient of a batch is the formula's, however the batch is cut."""

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

WEIGHTS = {"accuracy": 0.5, "format": 0.5}
LONGEST, VOCABULARY, TEMPERATURE = 40, 64, 0.7


def ragged(rng: np.random.Generator, index: int, size: int, *, all_right: bool = False) -> Group:
    rollouts = []
    for j in range(size):
        n = int(rng.integers(1, LONGEST + 1))
        success = all_right or bool(rng.random() < 0.5)
        tokens, logprobs = rng.integers(0, VOCABULARY, n), -rng.exponential(4.0, n)
        rollouts.append(rollout(tokens, logprobs=logprobs, phase="A" if j == 0 else "B", success=success))
    prompt = rng.integers(0, VOCABULARY, int(rng.integers(1, 9)))
    return group(index, rollouts, rule="hit_utility", prompt=prompt)


def batch(*sizes: int) -> list[Group]:
    """Groups of these sizes, and one without signal."""
    rng = np.random.default_rng(0)
    return [ragged(rng, i, n) for i, n in enumerate(sizes)] + [ragged(rng, 9, 4, all_right=True)]


def policy() -> Policy:
    return Policy(tiny_qwen2(VOCABULARY))


def estimator(**objective: Any) -> Estimator:
    return Estimator(Objective.model_validate(objective), WEIGHTS, "accuracy", 8, LONGEST)


BATCH = batch(1, 2, 5, 23, 60)


@pytest.fixture(scope="module")
def expected() -> torch.Tensor:
    return by_formula(policy(), BATCH, estimator(), TEMPERATURE)


@pytest.mark.parametrize(
    ("budget", "sharing", "ranks"),
    [
        *((budget, sharing, 1) for budget in (48, 100, 777, 100_000) for sharing in (None, ALWAYS)),
        (300, ALWAYS, 2),
        (300, ALWAYS, 4),
    ],
)
def test_the_gradient_does_not_depend_on_micro_batches_or_ranks(
    budget: int, sharing: Sharing | None, ranks: int, expected: torch.Tensor
) -> None:
    found = by_cut(policy(), BATCH, estimator(), TEMPERATURE, budget, sharing, ranks)
    assert apart(found, expected) < 1e-5


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
