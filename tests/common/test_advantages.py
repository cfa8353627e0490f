"""Each advantage against its published definition, worked out by hand or by enumerating subsets."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from hora_rl.common.advantages import advantages, formula
from hora_rl.common.algorithms import ADVANTAGES, advantage_of
from hora_rl.common.algorithms.shrunken import advantage as shrunken


@pytest.mark.parametrize(
    ("advantage", "rewards", "wanted"),
    [
        ("grpo", [1.0, 0.5, 0.0, 0.5], np.array([0.5, 0.0, -0.5, 0.0]) / (np.sqrt(0.5 / 3) + 1e-4)),
        ("rloo", [1.0, 0.0, 0.0], [1.0, -0.5, -0.5]),
        ("dr_grpo", [1.0, 0.0, 0.5], [0.5, -0.5, 0.0]),
        ("max_rl", [1, 0, 0, 0], [3, -1, -1, -1]),
        ("likelihood", [1, 0, 0, 1], [2, 0, 0, 2]),
        ("likelihood", [1], [1]),
        ("likelihood", [0, 0, 0], [0, 0, 0]),
        ("wald", [0, 0, 0], [-0.5] * 3),
        ("wald", [1, 0, 0], [2.5, -0.5, -0.5]),
        ("weighted_reinforce", [1, 0], [0.1, -1.0]),
    ],
)
def test_each_advantage_is_as_published(advantage: str, rewards: list[float], wanted: Any) -> None:
    of_group = formula("likelihood", baseline=1 / 6) if advantage == "wald" else formula(advantage)
    assert of_group(np.array(rewards)) == pytest.approx(wanted)


@pytest.mark.parametrize("advantage", ["grpo", "dr_grpo", "rloo", "max_rl"])
@pytest.mark.parametrize("rewards", [[0.7], [0.5] * 200, [0.1, 0.1, 0.1]])
def test_no_comparison_is_exactly_no_signal(advantage: str, rewards: list[float]) -> None:
    assert not formula(advantage)(np.array(rewards)).any()


def of_subsets(rewards: np.ndarray, k: int) -> np.ndarray:
    """s_i of PKPO's sloo_minus_one, from its definition."""
    n, s = len(rewards), np.zeros(len(rewards))
    chosen = list(combinations(range(n), k))
    for subset in chosen:
        for i in subset:
            rest = [rewards[j] for j in subset if j != i]
            s[i] += (rewards[list(subset)].max() - max(rest)) / len(chosen)
    return s


@pytest.mark.parametrize(("n", "k"), [(2, 2), (5, 2), (7, 3), (8, 8), (9, 5)])
def test_pkpo_is_the_mean_over_all_subsets(n: int, k: int) -> None:
    rng = np.random.default_rng(n)
    for rewards in (rng.normal(size=n), rng.integers(0, 2, n).astype(float), rng.integers(0, 3, n) / 2.0):
        assert formula("pkpo", k)(rewards) == pytest.approx(n * of_subsets(rewards, k), abs=1e-12)


@pytest.mark.parametrize(("n", "k"), [(2, 1), (5, 2), (7, 3), (8, 8), (9, 5)])
def test_pass_at_k_is_the_mean_over_all_subsets_that_hold_a_rollout(n: int, k: int) -> None:
    for hits in range(1, n + 1):
        successes = np.arange(n) < hits
        chosen = list(combinations(range(n), k))
        of_subset = np.array([successes[list(s)].any() for s in chosen], dtype=float)
        if of_subset.std() == 0:
            assert not formula("pass_at_k", k)(successes).any()
            continue
        relative = (of_subset - of_subset.mean()) / of_subset.std()
        wanted = [np.mean([a for a, s in zip(relative, chosen, strict=True) if i in s]) for i in range(n)]
        assert formula("pass_at_k", k)(successes) == pytest.approx(wanted, abs=1e-12)


def test_large_groups_neither_overflow_nor_lose_digits() -> None:
    successes = np.arange(5000) == 7
    advantage = formula("pkpo", 2000)(successes)
    assert advantage[7] == pytest.approx(2000), "n·C(n-1, k-1)/C(n, k) = k: every subset that holds it gains"
    assert np.abs(np.delete(advantage, 7)).max() == 0.0
    assert np.isfinite(formula("pass_at_k", 2000)(successes)).all()


OWNER = np.array([2, 0, 0, 2, 1, 0, 2, 0, 1, 0])
HITS = np.array([1, 0, 1, 0, 0, 0, 1, 0, 0, 1])
REWARDS = HITS + np.linspace(0, 0.4, 10)
EACH = ["shrunken(3, 0.5)" if name == "shrunken" else name for name in ADVANTAGES]


def options(objective: str) -> dict[str, int]:
    return {"k": 2} if objective in ("pass_at_k", "pkpo") else {}


@pytest.mark.parametrize("objective", EACH)
@pytest.mark.parametrize("names", [lambda i: i, lambda i: f"prompt {7 - i}"], ids=["numbers", "names"])
def test_a_batch_has_each_groups_advantages_in_the_order_of_its_rollouts(objective: str, names: Any) -> None:
    owner = [names(i) for i in OWNER]
    batch = advantages(REWARDS, owner, objective, HITS, per="group", **options(objective))
    for i in range(3):
        values = (HITS if advantage_of(objective).counts else REWARDS)[i == OWNER]
        assert batch[i == OWNER] == pytest.approx(formula(objective, **options(objective))(values))


@pytest.mark.parametrize("objective", EACH)
@pytest.mark.parametrize("average", ["rollouts", "tokens"])
def test_a_trainers_mean_over_rollouts_has_the_gradient_of_group_means(objective: str, average: str) -> None:
    """(1/Γ) Σ_i (1/G_i) Σ_j (1/Z) Σ_t A log π in torch, against the trainer's own average of the same."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 6, len(OWNER))
    logits = torch.from_numpy(rng.normal(size=(int(lengths.sum()), 4))).requires_grad_()
    logprobs = logits.log_softmax(-1)[:, 0]
    row = torch.from_numpy(np.repeat(np.arange(len(OWNER)), lengths))
    arguments = REWARDS, OWNER, objective, HITS
    plain = torch.from_numpy(advantages(*arguments, per="group", **options(objective)))
    wanted_scale = torch.from_numpy(1 / (3 * np.bincount(OWNER)[OWNER]))
    z = float(lengths.mean()) if average == "tokens" else 7.0
    wanted = (logprobs * (plain * wanted_scale)[row]).sum() / z
    weighted = logprobs * torch.from_numpy(advantages(*arguments, **options(objective)))[row]
    trainers = weighted.mean() if average == "tokens" else weighted.sum() / (len(OWNER) * z)
    ours, theirs = (torch.autograd.grad(loss, logits, retain_graph=True)[0] for loss in (wanted, trainers))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_shrunken_runs_from_likelihood_to_equal_weight_of_every_hit() -> None:
    likelihood, none = formula("likelihood"), formula("shrunken(0)")
    for hits in ([0, 0], [1, 0, 1, 1], [1, 1, 0, 0, 0]):
        assert none(np.array(hits)).tolist() == likelihood(np.array(hits)).tolist()
    weights = [shrunken(np.arange(8) < c, noise=2.0, overlap=0.5)[0] / 8 for c in (1, 2, 4)]
    assert weights == pytest.approx([1 / 2.5, 1 / 3, 1 / 4])
    large = [shrunken(np.arange(8) < c, noise=1e9)[0] for c in (1, 8)]
    assert large[0] == pytest.approx(large[1])


def test_the_best_weights_of_overlapping_gradients_are_those_of_shrunken() -> None:
    """Minimise E|Σ x_i ĝ_i - t Σ g_i|² over x: the solution is proportional to the weights, and what it keeps
    is κ²A/(1 + ρA)."""
    noise, overlap, c = 4.0, 0.3, np.array([1.0, 2.0, 5.0, 16.0])
    gram = np.full((4, 4), overlap) + (1 - overlap) * np.eye(4)
    target = gram.sum(0)
    best = np.linalg.solve(gram + np.diag(noise / c), target)
    weights = [k * shrunken(np.arange(20) < k, noise, overlap)[0] / 20 for k in c]
    assert best / best[0] == pytest.approx(np.array(weights) / weights[0])
    worth = np.sum(c / ((1 - overlap) * c + noise))
    kappa = 1 - overlap + overlap * len(c)
    assert target @ best == pytest.approx(kappa**2 * worth / (1 + overlap * worth))


def test_sizes_as_if_weigh_prompts_and_the_wald_baseline_takes_the_planned_size() -> None:
    plain = advantages(HITS, OWNER, "max_rl")
    weighed = advantages(HITS, OWNER, "max_rl", group_size=4, as_if=np.array([9, 1, 4])[OWNER])
    assert weighed == pytest.approx(plain * np.array([1.5, 0.5, 1.0])[OWNER])
    wald = advantages(HITS, OWNER, "likelihood", wald=True, group_size=6, per="group")
    assert wald[OWNER == 1] == pytest.approx([-2 / 6] * 2)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"rewards": [], "owner": []}, "rewards"),
        ({"rewards": [1, np.nan, 0]}, "rewards[1]"),
        ({"owner": [0, 1]}, "owner"),
        ({"objective": "ppo"}, "objective"),
        ({"objective": "shrunken"}, "objective"),
        ({"objective": "shrunken(1, 1)"}, "objective"),
        ({"objective": "grpo(1)"}, "objective"),
        ({"objective": "max_rl", "rewards": [1, 0, 0.5]}, "rewards[2]"),
        ({"objective": "max_rl", "successes": [1, 2, 0]}, "successes[1]"),
        ({"objective": "max_rl", "successes": [1]}, "successes"),
        ({"objective": "pkpo", "k": 1}, "k"),
        ({"objective": "pkpo", "k": 2}, "k (2)"),
        ({"k": 2}, "k (2)"),
        ({"wald": True}, "wald"),
        ({"as_if": [4, 4, 0]}, "as_if[2]"),
        ({"group_size": 0}, "group_size"),
        ({"per": "token"}, "per"),
    ],
)
def test_what_is_no_batch_is_refused_by_argument_and_index(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        advantages(**{"rewards": [1, 0, 0], "owner": [0, 1, 0], **changed})
    assert str(caught.value).startswith(named)
