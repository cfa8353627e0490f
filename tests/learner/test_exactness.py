"""The gradient of a batch is the formula's, however the batch is cut."""

from typing import Any

import numpy as np
import pytest
import torch

from hora_rl.common.config import Objective
from hora_rl.common.types import Group
from hora_rl.learner.batch import empty_micro_batch, make_micro_batch, micro_batches, samples_of
from hora_rl.learner.estimator import Estimator
from hora_rl.learner.head import scored
from hora_rl.learner.logprobs import Policy
from hora_rl.learner.objective import policy_loss
from hora_rl.learner.prefixes import Sharing, rows_of
from tests.support.groups import group, rollout
from tests.support.sharing import ALWAYS
from tests.support.tiny_qwen2 import tiny_qwen2

WEIGHTS = {"accuracy": 0.5, "format": 0.5}
MAX_RESPONSE, VOCABULARY, TEMPERATURE = 40, 64, 0.7


def tiny_policy(seed: int = 0) -> Policy:
    return Policy(tiny_qwen2(VOCABULARY, seed=seed))


def ragged(rng: np.random.Generator, index: int, size: int, reward: str = "mixed") -> Group:
    rollouts = []
    for j in range(size):
        n = int(rng.integers(1, MAX_RESPONSE + 1))
        success = {"mixed": rng.random() < 0.5, "right": True}[reward]
        tokens, logprobs = rng.integers(0, VOCABULARY, n), -rng.exponential(4.0, n)
        rollouts.append(
            rollout(tokens, logprobs=logprobs, phase="A" if j == 0 else "B", success=bool(success))
        )
    prompt = rng.integers(0, VOCABULARY, int(rng.integers(1, 9)))
    return group(index, rollouts, rule="hit_utility", prompt=prompt)


def batch(seed: int = 0) -> list[Group]:
    rng = np.random.default_rng(seed)
    return [ragged(rng, i, n) for i, n in enumerate([1, 2, 5, 23, 60])] + [ragged(rng, 9, 4, "right")]


def reference_gradient(policy: Policy, groups: list[Group], objective: Objective) -> list[torch.Tensor]:
    """One completion at a time, straight from the formula."""
    policy.zero_grad()
    for g in groups:
        rewards = np.array([sum(WEIGHTS[k] * v for k, v in r.rewards.items()) for r in g.rollouts])
        n = len(rewards)
        for r, reward in zip(g.rollouts, rewards, strict=True):
            if n == 1 or rewards.std() == 0:
                advantage = 0.0
            elif objective.advantage == "grpo":
                advantage = (reward - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
            elif objective.advantage == "rloo":
                advantage = reward - (rewards.sum() - reward) / (n - 1)
            else:
                advantage = reward - rewards.mean()
            ids = torch.from_numpy(np.concatenate([g.prompt_tokens, r.tokens])).long()[None]
            logits = policy.hf(ids).logits[0, len(g.prompt_tokens) - 1 : -1] / TEMPERATURE
            logp = torch.log_softmax(logits, -1).gather(-1, ids[0, len(g.prompt_tokens) :, None])[:, 0]
            ratio = torch.exp(logp.detach() - torch.from_numpy(r.logprobs))
            c = objective.importance_cap
            weight = {
                "token_truncate": ratio.clamp(max=c),
                "token_mask": ratio * (ratio <= c),
                "sequence_mask": ratio.prod() * (ratio.prod() <= c) * torch.ones_like(ratio),
                "none": torch.ones_like(ratio),
            }[objective.importance]
            z = MAX_RESPONSE if objective.normalisation == "constant" else len(r.tokens)
            rho = torch.exp(logp - logp.detach())
            gain = torch.minimum(
                rho * advantage, rho.clamp(1 - objective.clip_low, 1 + objective.clip_high) * advantage
            )
            (-(weight * gain).sum() / (len(groups) * n * z)).backward()
    return [p.grad.clone() for p in policy.parameters()]


def cut_gradient(
    policy: Policy,
    groups: list[Group],
    objective: Objective,
    budget: int,
    sharing: Sharing | None,
    chunk: int = 64,
    ranks: int = 1,
) -> list[torch.Tensor]:
    policy.zero_grad()
    for rank in range(ranks):
        mine = groups[rank::ranks]
        samples = samples_of(
            mine, Estimator(objective, WEIGHTS, "accuracy", 8, MAX_RESPONSE), len(groups), version=0
        )
        micro, _ = micro_batches(rows_of(samples, budget, sharing), budget)
        for m in [*micro, empty_micro_batch(torch.device("cpu"))]:
            logp, _ = policy(m, TEMPERATURE, chunk)
            policy_loss(logp, logp.detach(), m, objective)[0].backward()
    return [p.grad.clone() for p in policy.parameters()]


def relative(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    difference = torch.cat([(x - y).flatten() for x, y in zip(a, b, strict=True)])
    return float(difference.norm() / torch.cat([y.flatten() for y in b]).norm())


@pytest.fixture(scope="module")
def expected() -> list[torch.Tensor]:
    return reference_gradient(tiny_policy(), batch(), Objective())


@pytest.mark.parametrize("sharing", [None, ALWAYS])
@pytest.mark.parametrize("budget", [48, 100, 777, 100_000])
def test_the_gradient_does_not_depend_on_the_cut_into_micro_batches(
    budget: int, sharing: Sharing | None, expected: list[torch.Tensor]
) -> None:
    found = cut_gradient(tiny_policy(), batch(), Objective(), budget, sharing)
    assert relative(found, expected) < 1e-5


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_gradient_does_not_depend_on_the_number_of_ranks(
    ranks: int, expected: list[torch.Tensor]
) -> None:
    found = cut_gradient(tiny_policy(), batch(), Objective(), 300, ALWAYS, ranks=ranks)
    assert relative(found, expected) < 1e-5


@pytest.mark.parametrize("advantage", ["grpo", "dr_grpo", "rloo"])
@pytest.mark.parametrize("normalisation", ["constant", "sequence"])
@pytest.mark.parametrize("importance", ["token_truncate", "token_mask", "sequence_mask", "none"])
def test_every_estimator_is_its_formula(advantage: str, normalisation: str, importance: str) -> None:
    objective = Objective.model_validate(
        {"advantage": advantage, "normalisation": normalisation, "importance": importance}
    )
    groups = batch(1)
    policy, groups = tiny_policy(), [*groups[:3], groups[-1]]
    expected = reference_gradient(policy, groups, objective)
    assert relative(cut_gradient(policy, groups, objective, 300, ALWAYS), expected) < 1e-5


@pytest.mark.system  # nine seconds, of the minute that unit tests have
def test_a_group_of_two_hundred_rollouts_is_exact_too() -> None:
    rng = np.random.default_rng(2)
    policy, groups, objective = tiny_policy(), [ragged(rng, 0, 200)], Objective()
    assert (
        relative(
            cut_gradient(policy, groups, objective, 500, ALWAYS),
            reference_gradient(policy, groups, objective),
        )
        < 1e-5
    )


def test_groups_of_one_and_of_equal_rewards_contribute_exactly_nothing() -> None:
    rng = np.random.default_rng(3)
    groups = [ragged(rng, 0, 1), ragged(rng, 1, 6, "right")]
    assert (
        samples_of(groups, Estimator(Objective(), WEIGHTS, "accuracy", 8, MAX_RESPONSE), 2, version=0) == []
    )


def test_no_logits_wider_than_a_chunk_ever_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, groups = tiny_policy(), batch()
    seen: list[int] = []

    def watched(logits: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(len(logits))
        return scored(logits, *rest)

    monkeypatch.setattr("hora_rl.learner.head.scored", watched)
    cut_gradient(policy, groups, Objective(), 100_000, ALWAYS, chunk=7)
    assert max(seen) == 7


def test_importance_does_not_clip_a_first_update_and_the_loss_is_the_plain_policy_gradient() -> None:
    policy, groups = tiny_policy(), batch(4)[:3]
    objective = Objective(importance="none")
    samples = samples_of(groups, Estimator(objective, WEIGHTS, "accuracy", 8, MAX_RESPONSE), 3, version=0)
    micro = make_micro_batch([[s] for s in samples])
    logp, _ = policy(micro, TEMPERATURE, 64)
    loss, stats = policy_loss(logp, logp.detach(), micro, objective)
    assert stats["clip"] == 0
    assert float(loss) == pytest.approx(float(-(micro.scale * micro.advantage).sum()), rel=1e-5, abs=1e-7)


def test_clipping_has_separate_bounds_below_and_above() -> None:
    groups = batch(5)[:4]
    objective = Objective(clip_low=0.1, clip_high=0.3, importance="none")
    samples = samples_of(groups, Estimator(objective, WEIGHTS, "accuracy", 8, MAX_RESPONSE), 4, version=0)
    micro = make_micro_batch([[s] for s in samples])
    zero = torch.zeros_like(micro.logprobs)
    for shift, bound in ((0.5, 1.3), (-0.5, 0.9)):
        loss, _ = policy_loss(zero + shift, zero, micro, objective)
        ratio = float(np.exp(shift))
        gain = torch.minimum(ratio * micro.advantage, bound * micro.advantage)
        assert float(loss) == pytest.approx(float(-(micro.scale * gain).sum()), rel=1e-5)
