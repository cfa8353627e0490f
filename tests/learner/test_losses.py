"""Every loss option: its gradient is its slope, and its sums hold over any cut."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from hora_rl.common.algorithms.base import Algorithm, TokenTerms
from hora_rl.common.config import ObjectiveConfig
from hora_rl.learner.model.objective import k3, policy_loss, read
from hora_rl.learner.rows.batch import MicroBatch, make_micro_batch
from hora_rl.learner.rows.packing import Sample
from tests.support.samples import sample

OPTIONS: list[dict[str, Any]] = [
    {},
    {"loss": "gspo", "clip_low": 0.2, "clip_high": 0.2},
    {"loss": "gspo", "clip_low": 0.03, "clip_high": 0.04},
    {"loss": "sapo"},
    {"kl": 0.3},
    {"normalisation": "token", "importance": "sequence_mask"},
]
LENGTHS = (1, 4, 7, 2, 5)
ALL = list(range(len(LENGTHS)))
PUSHES = [(1, 0.5, False), (1, -0.5, True), (-1, 0.5, True), (-1, -0.5, False)]


class Case:
    """Completions with log-probs (N,) of policy, π_prox, π_ref and generator, float64 where it is free."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.advantage = rng.normal(size=len(LENGTHS)).astype(np.float32).tolist()
        self.scale = rng.uniform(0.1, 1.0, len(LENGTHS)).astype(np.float32).tolist()
        self.prox, self.policy, self.reference = rng.normal(-1.5, 0.4, (3, sum(LENGTHS)))
        self.generator = (self.prox + rng.normal(0, 0.2, sum(LENGTHS))).clip(max=0).astype(np.float32)

    def micro(self, which: list[int]) -> MicroBatch:
        def one(i: int) -> Sample:
            logprobs = self.part(self.generator, [i]).numpy()
            return sample([1], np.ones(LENGTHS[i]), logprobs, self.advantage[i], self.scale[i])

        return make_micro_batch([[one(i)] for i in which])

    def part(self, values: np.ndarray, which: list[int]) -> torch.Tensor:
        ends = np.cumsum(LENGTHS)
        return torch.from_numpy(np.concatenate([values[ends[i] - LENGTHS[i] : ends[i]] for i in which]))

    def loss(
        self, objective: ObjectiveConfig, which: list[int], policy: np.ndarray | None = None
    ) -> tuple[torch.Tensor, dict[str, float], torch.Tensor]:
        logprobs = self.part(self.policy if policy is None else policy, which).requires_grad_()
        reference = self.part(self.reference, which) if objective.kl else None
        micro = self.micro(which)
        loss, stats = policy_loss(logprobs, self.part(self.prox, which), micro, objective, reference)
        return loss, read([stats])[0], logprobs


def micro(advantage: float, length: int) -> MicroBatch:
    """One completion with scale 1/8 and log π_gen = -1, of which every other token is of this version."""
    each = sample([1], np.ones(length), -1.0, advantage, 0.125)
    return make_micro_batch([[replace(each, match=np.arange(length) % 2 == 0)]])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_gradient_is_the_slope_of_the_loss(options: dict[str, Any]) -> None:
    case, objective, step = Case(), ObjectiveConfig.model_validate(options), 1e-6
    loss, _, logprobs = case.loss(objective, ALL)
    loss.backward()
    for t in range(len(case.policy)):
        up, down = case.policy.copy(), case.policy.copy()
        up[t] += step
        down[t] -= step
        slope = (case.loss(objective, ALL, up)[0] - case.loss(objective, ALL, down)[0]).item() / (2 * step)
        assert logprobs.grad[t].item() == pytest.approx(slope, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("options", [*OPTIONS, {"loss": "cispo"}], ids=str)
def test_loss_and_sums_add_up_over_any_cut(options: dict[str, Any]) -> None:
    case, objective = Case(1), ObjectiveConfig.model_validate(options)
    expected, sums, logprobs = case.loss(objective, ALL)
    expected.backward()
    for cut in ([[0], [1], [2], [3], [4]], [[4, 1], [0, 2, 3]]):
        parts = [case.loss(objective, which) for which in cut]
        for loss, _, _ in parts:
            loss.backward()
        assert sum(p[0].item() for p in parts) == pytest.approx(expected.item(), rel=1e-9)
        for name, value in sums.items():
            combine = max if name.endswith("max") else sum
            assert combine(p[1][name] for p in parts) == pytest.approx(value, rel=1e-5, abs=1e-6), name
        for which, (_, _, of_part) in zip(cut, parts, strict=True):
            torch.testing.assert_close(of_part.grad, case.part(logprobs.grad.numpy(), which))


def plain(tokens: TokenTerms) -> tuple[torch.Tensor, torch.Tensor]:
    return tokens.ratio * tokens.advantage, tokens.ratio > 1.0 + tokens.clip_high


OWN = Algorithm(token_loss=plain, defaults={"clip_high": 0.5})


@pytest.mark.parametrize(("name", "bound"), [("OWN", 0.5), ("plain", 0.2)])
def test_a_users_loss_is_an_algorithm_with_its_defaults_or_a_function(name: str, bound: float) -> None:
    objective, case = ObjectiveConfig(loss=f"{__name__}:{name}", importance="none"), Case()
    loss, sums, _ = case.loss(objective, ALL)
    ratio, micro = np.exp(case.policy - case.prox), case.micro(ALL)
    assert loss.item() == pytest.approx(-float((micro.scale * micro.advantage).double().numpy() @ ratio))
    assert sums["clip"] == (ratio > 1 + bound).sum()
    assert ObjectiveConfig.model_validate(objective.model_dump()) == objective


@pytest.mark.parametrize(("advantage", "shift", "moves"), PUSHES)
def test_a_token_stops_only_beyond_the_bound_it_crosses(advantage: float, shift: float, moves: bool) -> None:
    logprobs = torch.full((1,), -1.0 + shift, requires_grad=True)
    loss, stats = policy_loss(logprobs, torch.full((1,), -1.0), micro(advantage, 1), ObjectiveConfig())
    loss.backward()
    assert bool(logprobs.grad.item() != 0.0) is moves
    assert stats["clip"] == (not moves)


def test_drift_counts_only_tokens_of_the_learners_own_version() -> None:
    logprobs = torch.tensor([-1.5, -9.0, -0.5, -9.0])
    [stats] = read([policy_loss(logprobs, logprobs, micro(1.0, 4), ObjectiveConfig())[1]])
    assert stats["drift_tokens"] == 2
    assert stats["drift"] == pytest.approx(1.0)


FAR = [30.0, 60.0, 95.0, -30.0, -95.0]
"""Log-ratios in nats; float32 overflows beyond 88."""
FOUR = sample([1], np.ones(4), -1.0, 1.0, 0.25)


def one_far_token(
    gap: float, objective: ObjectiveConfig, of: str, advantage: float
) -> tuple[list[float], float]:
    """Gradient of the policy gradient and KL of four tokens in float32, the last of which has a log-ratio of
    `gap` to π_`of`; and the number of tokens at a bound."""
    logprobs, last = {n: torch.full((4,), -1.0) for n in ("prox", "ref", "generator")}, torch.arange(4) == 3
    logprobs[of] = torch.where(last, -1.0 - gap, -1.0)
    policy = torch.full((4,), -1.0, requires_grad=True)
    far = make_micro_batch([[replace(FOUR, logprobs=logprobs["generator"].numpy(), advantage=advantage)]])
    loss, sums = policy_loss(
        policy, logprobs["prox"], far, objective, logprobs["ref"] if objective.kl else None
    )
    loss.backward()
    assert all(np.isfinite(v) for v in (loss.item(), *sums.values()))
    return policy.grad.tolist(), sums["bounded"]


IMPORTANCE = {"token_truncate": 3.0, "token_mask": 0.0, "sequence_mask": 0.0, "none": 1.0}
"""The weight of a token far above its cap."""


@pytest.mark.parametrize("gap", FAR)
def test_a_log_ratio_that_overflows_is_bounded_and_leaves_the_other_tokens_theirs(gap: float) -> None:
    gradient, bounded = one_far_token(-gap, ObjectiveConfig(kl=0.001), "ref", 1.0)
    assert (gradient, bounded) == (pytest.approx([-0.25] * 4), 1)
    for loss, advantage in product(("clip", "cispo", "sapo"), (1.0, -1.0)):
        gradient, bounded = one_far_token(gap, ObjectiveConfig(loss=loss), "prox", advantage)
        assert gradient[:3] == pytest.approx([-0.25 * advantage] * 3), loss
        assert (np.isfinite(gradient[3]), bounded) == (True, 1)
    for kind, above in IMPORTANCE.items():
        gradient, bounded = one_far_token(gap, ObjectiveConfig(importance=kind), "generator", 1.0)
        last = above if gap > 0 else 1.0 if kind == "none" else np.exp(-20)
        first = last if kind == "sequence_mask" else 1.0
        assert (gradient, bounded) == (pytest.approx([-0.25 * first] * 3 + [-0.25 * last]), 1), kind


@pytest.mark.parametrize(("gap", "advantage"), product([95.0, -95.0], [1.0, -1.0]))
def test_a_sequence_ratio_that_overflows_has_a_finite_gradient(gap: float, advantage: float) -> None:
    objective = ObjectiveConfig(loss="gspo", clip_low=0.2, clip_high=0.2)
    gradient, bounded = one_far_token(gap, objective, "prox", advantage)
    assert np.isfinite(gradient).all()
    assert bounded == 4, "the mean of the four log-ratios is 24 nats"


def test_within_its_bounds_k3_is_its_formula() -> None:
    gap = torch.linspace(-10.9, 2.5, 100, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(k3(gap), torch.exp(gap) - gap - 1)
    torch.testing.assert_close(torch.autograd.grad(k3(gap).sum(), gap)[0], torch.exp(gap) - 1)
