"""Every round is the exact optimum of what is known, their sum the budget, a session rebuilt the same."""

import sys
import time
from dataclasses import dataclass

import numpy as np
import pytest

from hora_rl.allocator import Session, allocate
from hora_rl.allocator.posterior import Float, Int, Posterior
from hora_rl.allocator.rules.base import Gain
from tests.allocator.one_by_one import GAINS, one_by_one

STOPS = ["none", "hit", "mixed"]
OTHERS = ("variance", "variance(dr_grpo)", "variance(prior)", "knapsack", "ar3po", "reinforce_ada(4)")
RULES = [*GAINS, *OTHERS]
WEIGHT = 0.1


def phase_a(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(rates, successes, trials) of rather few rollouts."""
    rates, trials = rng.beta(0.323, 0.143, n), rng.integers(1, 6, n)
    if rng.random() < 0.5:
        trials[:] = trials[0]
    return rates, rng.binomial(trials, rates), trials


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("rule", GAINS)
def test_every_round_is_the_one_that_a_literal_greedy_gives(rule: str, stop: str) -> None:
    rng = np.random.default_rng(RULES.index(rule))
    for case in range(25):
        n, rounds = int(rng.integers(1, 9)), int(rng.integers(1, 5))
        rates, c, g0 = phase_a(rng, n)
        budget = int(rng.integers(rounds, 8 * n + rounds + 1))
        cap = None if case % 2 else int(max(g0.max(), -(-(budget + g0.sum()) // n))) + int(rng.integers(0, 9))
        each = (rng.uniform(0.2, 3, n), rng.uniform(0.2, 3, n))
        prior = each if case % 3 == 0 else (np.ones(n), np.ones(n))
        session = Session(n, budget, rule, prior if case % 3 != 1 else (1.0, 1.0), rounds, stop, cap)
        session.tell(c, g0)
        left = budget
        for later in range(rounds, 0, -1):
            counts = session.successes.tolist(), session.trials.tolist(), (session.trials - g0).tolist()
            extra = session.ask()
            assert extra.tolist() == one_by_one(rule, *counts, prior, left // later, stop, cap)
            left -= int(extra.sum())
            session.tell(rng.binomial(extra, rates), extra)
        assert session.done
        assert cap is None or session.trials.max() <= cap


@pytest.mark.parametrize("rule", RULES)
def test_one_round_without_a_stop_is_allocate_bit_for_bit(rule: str) -> None:
    rng = np.random.default_rng(1)
    for case in range(100):
        n = int(rng.integers(1, 70))
        c, budget = rng.binomial(8, rng.beta(0.323, 0.143, n)), int(rng.integers(0, 24 * n))
        prior = (1.0, 1.0) if case % 2 else (rng.uniform(0.2, 3, n), rng.uniform(0.2, 3, n))
        cap = None if case % 4 else 40
        session = Session(n, budget, rule, prior, max_group_size=cap)
        session.tell(c, 8)
        np.testing.assert_array_equal(session.ask(), allocate(c, 8, budget, prior, rule, cap))


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("rule", RULES)
def test_equal_rounds_spend_the_budget_exactly_and_replays_go_on_alike(rule: str, stop: str) -> None:
    rng = np.random.default_rng(2)
    for _ in range(4):
        n, rounds = int(rng.integers(2, 40)), int(rng.integers(1, 9))
        rates = rng.beta(0.323, 0.143, n)
        c = rng.binomial(8, rates)
        budget = int(rng.integers(rounds, 24 * n))
        made = {"rule": rule, "rounds": rounds, "stop": stop, "max_group_size": 8 + 30}
        session, results = Session(n, min(budget, 30 * n), **made), [(c, np.full(n, 8))]
        session.tell(*results[0])
        sizes = []
        while not session.done:
            again = Session(n, min(budget, 30 * n), **made)
            for earlier in results:
                again.tell(*earlier)
            extra = session.ask()
            np.testing.assert_array_equal(again.ask(), extra)
            np.testing.assert_array_equal(session.ask(), extra)
            sizes.append(int(extra.sum()))
            results.append((rng.binomial(extra, rates), extra))
            session.tell(*results[-1])
        assert sum(sizes) == min(budget, 30 * n)
        assert len(sizes) == rounds
        assert max(sizes) - min(sizes) <= 1
        assert not session.ask().any()


def test_lost_rollouts_are_given_again() -> None:
    session = Session(2, 20, rounds=2)
    session.tell([0, 3], 4)
    extra = session.ask()
    session.tell([0, 0], extra - [1, 0])
    assert session.ask().sum() == 11
    session.tell([0, 0], session.ask())
    assert session.done


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"rounds": 0}, "rounds"),
        ({"rounds": 11}, r"rounds \(11\)"),
        ({"stop": "first"}, "stop: 'first'"),
        ({"rule": "nope"}, "rule: 'nope'"),
        ({"rule": "hit_or_miss(x)"}, "'x'"),
        ({"rule": "expected_worth(-1)"}, "expected_worth.* -1"),
        ({"rule": "expected_worth(1, 1)"}, "overlap.* 1"),
        ({"rule": "expected_worth(1, 0, 0)"}, "1, 0, 0"),
        ({"rule": "first_hit(0)"}, "first_hit"),
        ({"rule": "hit_or_miss(-1)"}, "hit_or_miss.* -1"),
        ({"budget": -1}, "budget.* -1"),
        ({"prompts": 0}, "prompts.* 0"),
        ({"prior": ([1.0, 2.0, 3.0], 1.0)}, "prior alpha"),
    ],
)
def test_a_session_that_cannot_be_is_refused_in_one_line(made: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Session(**{"prompts": 2, "budget": 10, **made})


@pytest.mark.parametrize(
    ("tells", "message"),
    [
        ([([0, 0], 0)], "mixed.* 1 .* 0"),
        ([([1, 2, 3], 4)], "successes"),
        ([([5, 2], 4)], r"successes\[0\] = 5"),
        ([([1, 2], 4), ([0, 0], [6, 5])], "trials: .*11.*10"),
        ([([1, 2], 25)], r"max_group_size \(20\).*trials\[0\] = 25"),
        ([([1, 2], 18)], r"budget \(10\).*max_group_size \(20\)"),
    ],
)
def test_what_cannot_have_been_sampled_is_refused_and_changes_nothing(tells: list, message: str) -> None:
    session = Session(2, 10, "mixed", max_group_size=20)
    with pytest.raises(ValueError, match="tell Phase A"):
        session.ask()
    for tell in tells[:-1]:
        session.tell(*tell)
    before = session.trials
    with pytest.raises(ValueError, match=message):
        session.tell(*tells[-1])
    np.testing.assert_array_equal(session.trials, before)


def weighted(posterior: Posterior, level: Int) -> Float:
    return np.where(posterior.successes > 0, WEIGHT, 1.0) / (1.0 + level)


@dataclass
class Weighted:
    """With eq and without frozen: not hashable."""

    def __call__(self, posterior: Posterior, level: Int) -> Float:
        return weighted(posterior, level)


@pytest.mark.parametrize("rule", [weighted, f"{__name__}:weighted", Weighted()])
def test_a_users_rule_divides_by_what_it_is_now(rule: str | Gain, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it has divided the same counts before."""
    session = Session(3, 24, rule)
    session.tell([0, 3, 6], 8)
    divisions = []
    for weight in (0.1, 6.0):
        monkeypatch.setattr(sys.modules[__name__], "WEIGHT", weight)
        ways = [session.ask(), allocate([0, 3, 6], 8, 24, rule=rule)]
        divisions.append({tuple(extra.tolist()) for extra in ways})
    (before,), (after,) = divisions
    assert after[0] < before[0]


def test_four_rounds_of_thousands_of_prompts_take_milliseconds() -> None:
    """Loose bounds for a shared machine; benchmarks/allocator.py has the figures."""
    rng = np.random.default_rng(4)
    rates = rng.beta(0.323, 0.143, 4096)
    for rule, stop in (("hit_utility", "none"), ("first_hit", "hit"), ("hit_or_miss", "mixed")):
        session = Session(4096, 4096 * 24, rule, rounds=4, stop=stop)
        session.tell(rng.binomial(8, rates), 8)
        while not session.done:
            began = time.perf_counter()
            extra = session.ask()
            assert time.perf_counter() - began < 0.5
            session.tell(rng.binomial(extra, rates), extra)


def test_a_plug_in_estimate_gives_nothing_where_nobody_has_succeeded() -> None:
    """The paper's appendix "Degeneracy of Plug-in Hit Utility", against the posterior's."""

    def plug_in(posterior: Posterior, level: Int) -> Float:
        p = posterior.successes / posterior.trials
        return p * (1 - p) ** level

    rng = np.random.default_rng(5)
    for _ in range(50):
        successes = rng.integers(0, 8, 12)
        successes[:2] = 0, 3  # one of each kind; nobody is certain, as in the proposition
        budget = int(rng.integers(150, 300))
        assert not allocate(successes, 8, budget, rule=plug_in)[successes == 0].any()
        assert allocate(successes, 8, budget)[successes == 0].all()
