"""The loss of given log-probs, term by term, against numbers worked out by hand or in plain numpy."""

import math

import numpy as np
import pytest
import torch

from hora_rl.common.config import Objective
from hora_rl.learner.batch import MicroBatch, make_micro_batch
from hora_rl.learner.objective import importance, policy_loss
from hora_rl.learner.sample import Sample


def micro(advantages: list[float], lengths: list[int], generator: float = -1.0) -> MicroBatch:
    """Samples of prompt length 1, scale 1/8, the same π_gen log-prob for every token; half of them
    matched."""
    one, rows = np.ones(1, np.int32), zip(advantages, lengths, strict=True)
    numbers = [(a, n, np.full(n, generator, np.float32), np.arange(n) % 2 == 0) for a, n in rows]
    return make_micro_batch([[Sample(one, np.ones(n, np.int32), g, a, 0.125, m)] for a, n, g, m in numbers])


def test_token_truncate_caps_each_weight_and_leaves_small_ones() -> None:
    weight = importance(torch.tensor([0.0, 5.0, -2.0]), torch.zeros(3, dtype=torch.long), Objective())
    assert weight.tolist() == pytest.approx([1.0, 3.0, math.exp(-2.0)])


def test_token_mask_drops_only_the_tokens_above_the_cap() -> None:
    objective = Objective(importance="token_mask", importance_cap=2.0)
    weight = importance(torch.tensor([0.5, 0.8, -1.0]), torch.zeros(3, dtype=torch.long), objective)
    assert weight.tolist() == pytest.approx([math.exp(0.5), 0.0, math.exp(-1.0)])


def test_sequence_mask_weighs_and_drops_whole_completions_by_their_product() -> None:
    objective = Objective(importance="sequence_mask", importance_cap=2.0)
    log_ratio = torch.tensor([0.9, -0.5, 0.6, 0.6])
    weight = importance(log_ratio, torch.tensor([0, 0, 1, 1]), objective)
    assert weight.tolist() == pytest.approx([math.exp(0.4), math.exp(0.4), 0.0, 0.0])


def test_no_importance_correction_ignores_the_generator() -> None:
    objective = Objective(importance="none")
    logprobs = torch.full((2,), -1.0)
    losses = [
        float(policy_loss(logprobs, logprobs, micro([1.0], [2], g), objective)[0]) for g in (-1.0, -9.0)
    ]
    assert losses == pytest.approx([-0.25, -0.25])


def test_the_weight_multiplies_the_loss_but_takes_no_gradient() -> None:
    logprobs = torch.full((2,), -0.5, requires_grad=True)
    loss, _ = policy_loss(logprobs, logprobs.detach(), micro([1.0], [2]), Objective())
    loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-0.125 * math.exp(0.5)] * 2)


@pytest.mark.parametrize(
    ("advantage", "shift", "moves"), [(1, 0.5, False), (1, -0.5, True), (-1, 0.5, True), (-1, -0.5, False)]
)
def test_a_token_stops_moving_only_beyond_the_bound_it_is_pushed_over(
    advantage: float, shift: float, moves: bool
) -> None:
    logprobs = torch.full((1,), -1.0 + shift, requires_grad=True)
    loss, stats = policy_loss(logprobs, torch.full((1,), -1.0), micro([advantage], [1]), Objective())
    loss.backward()
    assert logprobs.grad is not None
    assert bool(logprobs.grad.item() != 0.0) is moves
    assert stats["clip"] == (not moves)


def test_kl_is_the_k3_estimate_and_pulls_towards_the_reference() -> None:
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    reference = torch.tensor([-1.5, -1.0])
    objective = Objective(kl=0.3)
    loss, _ = policy_loss(logprobs, logprobs.detach(), micro([0.0], [2]), objective, reference)
    gap = (reference - logprobs.detach()).numpy()
    assert float(loss) == pytest.approx(0.3 * 0.125 * float((np.exp(gap) - gap - 1).sum()), rel=1e-5)
    loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad[0] > 0 > logprobs.grad[1]


def test_the_sums_of_two_micro_batches_are_those_of_both_together() -> None:
    rng = np.random.default_rng(0)
    values = [torch.from_numpy(rng.normal(-1, 0.3, n)).float() for n in (5, 3)]
    prox = [v + torch.from_numpy(rng.normal(0, 0.3, len(v))).float() for v in values]
    parts = [
        policy_loss(values[i], prox[i], micro([a], [n]), Objective())
        for i, (a, n) in enumerate([(1.5, 5), (-0.5, 3)])
    ]
    whole = policy_loss(torch.cat(values), torch.cat(prox), micro([1.5, -0.5], [5, 3]), Objective())
    assert float(whole[0]) == pytest.approx(sum(float(p[0]) for p in parts), rel=1e-5)
    for name, value in whole[1].items():
        combine = max if name.endswith("max") else sum
        assert value == pytest.approx(combine(p[1][name] for p in parts), rel=1e-5, abs=1e-6), name


def test_drift_counts_only_tokens_of_the_learners_own_version() -> None:
    logprobs = torch.tensor([-1.5, -9.0, -0.5, -9.0])
    _, stats = policy_loss(logprobs, logprobs, micro([1.0], [4]), Objective())
    assert stats["drift_tokens"] == 2
    assert stats["drift"] == pytest.approx(1.0)
