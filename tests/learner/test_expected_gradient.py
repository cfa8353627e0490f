"""Expected gradients of a categorical policy, every outcome enumerated, on 1,000 random rates.

Outcomes 0 and 1 are right, outcome 2 is wrong; the gradient is that of the logits. A path is the sequence of
outcomes of one prompt's group; what decides its length sees counts only, as the allocator does.
"""

from collections.abc import Callable
from functools import cache, partial
from itertools import product

import numpy as np
import pytest

from hora_rl.allocator import Session, allocate
from hora_rl.allocator.rules import RULES
from hora_rl.common.advantages import formula
from hora_rl.common.algorithms.base import Values
from hora_rl.common.algorithms.likelihood import advantage as likelihood

RIGHT = np.array([1.0, 1.0, 0.0])
G0 = 2
Path = tuple[int, ...]
Next = Callable[[int, int], int]  # (successes, rollouts so far) -> rollouts of the next round, 0 ends


def random_rates() -> np.ndarray:
    """(1000, 3): softmax of wide logits, so that success is anything from 0.001 to 0.999."""
    logits = np.random.default_rng(0).normal(0.0, 2.5, (1000, 3))
    weights = np.exp(logits)
    return weights / weights.sum(1, keepdims=True)


RATES = random_rates()
SUCCESS = RATES @ RIGHT


def paths(plan: Next, begun: Path = ()) -> list[Path]:
    """All groups that can come about: Phase A of G0, then rounds of `plan` until it gives nothing."""
    more = G0 if not begun else plan(int(RIGHT[list(begun)].sum()), len(begun))
    if more == 0:
        return [begun]
    return [path for tail in product(range(3), repeat=more) for path in paths(plan, begun + tail)]


def expected(groups: list[Path], advantage: Callable[[Values], Values]) -> np.ndarray:
    """(1000, 3): Σ over groups of P(group) · (1/n) Σ_j A_j ∇log π(outcome j)."""
    gradient = np.zeros_like(RATES)
    for path in groups:
        outcomes = np.array(path)
        chance = RATES[:, outcomes].prod(1)
        per_outcome = np.bincount(outcomes, advantage(RIGHT[outcomes]) / len(path), minlength=3)
        gradient += chance[:, None] * (per_outcome - per_outcome.sum() * RATES)
    return gradient


def of_success() -> np.ndarray:
    """∇p (1000, 3)."""
    return RATES * (RIGHT - SUCCESS[:, None])


def fixed(n: int) -> Next:
    return lambda successes, rollouts: n - rollouts


def one_shot(rule: str, other: int) -> Next:
    """The paper's Phase B of this prompt, in a shard with one that had `other` successes."""
    size = {c: int(allocate(np.array([c, other]), G0, 5, rule=rule)[0]) for c in range(G0 + 1)}
    return lambda successes, rollouts: size[successes] if rollouts == G0 else 0


def stop_at_a_hit(rounds: int, each: int) -> Next:
    return lambda successes, rollouts: 0 if successes or rollouts >= G0 + rounds * each else each


def uneven_rounds(successes: int, rollouts: int) -> int:
    """Sizes that depend on counts in an odd way: what the identity allows."""
    return {2: (1, 2, 0), 3: (2, 0, 1, 0), 4: (1, 1, 0, 0, 0)}.get(rollouts, (0,) * 9)[successes]


def sessions(rule: str, rounds: int, stop: str, tape: Path) -> list[Path]:
    """All groups of the first of two prompts that an allocator's session divides rounds between; the second's
    outcomes, success or not, are those of `tape` in order."""

    @cache
    def after(counts: tuple[tuple[int, int], ...]) -> int:
        """Rollouts of the round that follows (successes, rollouts) of the rounds so far."""
        session, read = Session(2, 4, rule=rule, rounds=rounds, stop=stop), 0
        for number, (hits, n) in enumerate(counts):
            other = int(session.ask()[1]) if number else G0
            session.tell([hits, sum(tape[read : read + other])], [n, other])
            read += other
        return -1 if session.done else int(session.ask()[0])

    def begun(outcomes: Path, counts: tuple[tuple[int, int], ...], more: int) -> list[Path]:
        if more < 0:
            return [outcomes]
        result = []
        for tail in product(range(3), repeat=more):
            known = (*counts, (sum(o < 2 for o in tail), more))
            result += begun(outcomes + tail, known, after(known))
        return result

    return begun((), (), G0)


PLANS = {
    **{f"{rule}/{other}": one_shot(rule, other) for rule in RULES for other in range(G0 + 1)},
    "stop at a hit, four rounds": stop_at_a_hit(4, 1),
    "stop at a hit, two rounds": stop_at_a_hit(2, 2),
    "uneven": uneven_rounds,
}


@pytest.mark.parametrize("baseline", [0.0, 1 / 4])
@pytest.mark.parametrize("plan", PLANS)
def test_likelihood_is_the_share_of_log_p_that_is_hit_whatever_decides_n(plan: str, baseline: float) -> None:
    groups = paths(PLANS[plan])
    hit = sum(RATES[:, list(path)].prod(1) for path in groups if RIGHT[list(path)].any())
    wanted = (hit / SUCCESS)[:, None] * of_success()
    result = expected(groups, lambda successes: likelihood(successes, baseline))
    assert np.abs(result - wanted).max() < 1e-10


@pytest.mark.parametrize("tape", [(0, 0, 0, 0, 0, 0), (1, 1, 0, 1, 1, 1)])
@pytest.mark.parametrize("stop", ["none", "hit", "mixed"])
@pytest.mark.parametrize(
    "rule", ["hit_utility", "first_hit", "mixed", "hit_or_miss", "hard_first", "uniform"]
)
def test_likelihood_keeps_it_through_the_rounds_of_a_session(rule: str, stop: str, tape: Path) -> None:
    groups = sessions(rule, 4, stop, tape)
    hit = sum(RATES[:, list(path)].prod(1) for path in groups if RIGHT[list(path)].any())
    wanted = (hit / SUCCESS)[:, None] * of_success()
    for baseline in (0.0, 1 / 4):
        result = expected(groups, lambda successes, b=baseline: likelihood(successes, b))  # type: ignore[misc]
        assert np.abs(result - wanted).max() < 1e-10
    assert sum(RATES[:, list(path)].prod(1) for path in groups) == pytest.approx(np.ones(len(RATES)))


def test_one_over_the_groups_own_size_is_no_such_baseline() -> None:
    groups = paths(stop_at_a_hit(4, 1))
    kept = expected(groups, likelihood)
    moved = expected(groups, lambda successes: likelihood(successes, 1 / len(successes)))
    assert np.abs(kept - moved).max() > 0.01


def harmonic(order: int) -> np.ndarray:
    """Σ of the first `order` terms of 1/p = Σ (1-p)^(k-1): the mixture of the gradients of Pass@K."""
    return sum((1 - SUCCESS) ** (k - 1) for k in range(1, order + 1))


PKPO = ((2, 2), (4, 2), (6, 2), (5, 4), (6, 6))
# A group without a hit, whose advantage is zero, takes the last term of `max_rl`.
EQUAL: list[tuple[Callable[[Values], Values], int, np.ndarray]] = [
    *((likelihood, n, harmonic(n)) for n in (2, 3, 6)),
    *((partial(likelihood, baseline=1 / n), n, harmonic(n)) for n in (2, 3, 6)),
    *((formula("max_rl"), n, harmonic(n - 1)) for n in (2, 3, 6)),
    *((formula("pkpo", k), n, k * (1 - SUCCESS) ** (k - 1)) for n, k in PKPO),
    *((formula("rloo"), n, np.ones(len(RATES))) for n in (2, 6)),
]


@pytest.mark.parametrize(("advantage", "n", "weight"), EQUAL)
def test_on_equal_groups_each_advantage_is_its_weight_times_the_gradient_of_p(
    advantage: Callable[[Values], Values], n: int, weight: np.ndarray
) -> None:
    assert np.abs(expected(paths(fixed(n)), advantage) - weight[:, None] * of_success()).max() < 1e-10


def test_pkpo_is_the_gradient_of_the_expected_maximum_of_continuous_rewards() -> None:
    value, n, k = np.array([0.3, 1.7, -0.4]), 5, 3
    wanted, result = np.zeros_like(RATES), np.zeros_like(RATES)
    for size, of in ((k, None), (n, formula("pkpo", k))):
        for path in product(range(3), repeat=size):
            outcomes = np.array(path)
            chance = RATES[:, outcomes].prod(1)[:, None]
            score = np.bincount(outcomes, minlength=3) - size * RATES
            if of is None:
                wanted += chance * value[outcomes].max() * score
            else:
                per = np.bincount(outcomes, of(value[outcomes]) / n, minlength=3)
                result += chance * (per - per.sum() * RATES)
    assert np.abs(result - wanted).max() < 1e-10
