"""Every round is the exact optimum of what is known, their sum the budget, a session rebuilt the same; by
single rollouts too, in any order, with late, lost and repeated results."""

import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from hora_rl.allocator import Session, allocate
from hora_rl.allocator.lengths import Lengths, per_token
from hora_rl.allocator.posterior import Float, Int, Posterior
from hora_rl.allocator.rules import get_rule
from hora_rl.allocator.rules.base import Gain
from tests.allocator.one_by_one import GAINS, one_by_one

STOPS = ["none", "hit", "mixed"]
OTHERS = ("variance", "variance(dr_grpo)", "variance(prior)", "knapsack", "ar3po", "reinforce_ada(4)")
RULES = [*GAINS, *OTHERS]
WEIGHT = 0.1
N, G, G0 = 7, 12, 3


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


@pytest.mark.parametrize("rule", ["hit_utility", "first_hit", "mixed", "hit_or_miss(0.75)"])
def test_a_least_share_leaves_the_optimum_of_the_rest(rule: str) -> None:
    rng = np.random.default_rng(3)
    starved = 0
    for case in range(40):
        n, rounds, least = int(rng.integers(1, 9)), int(rng.integers(1, 3)), int(rng.integers(1, 3))
        rates, c, g0 = phase_a(rng, n)
        budget = rounds * n * least + int(rng.integers(0, 8 * n))
        each = (rng.uniform(0.2, 3, n), rng.uniform(0.2, 3, n))
        prior = each if case % 2 else (np.ones(n), np.ones(n))
        session = Session(n, budget, rule, prior if case % 2 else (1.0, 1.0), rounds, least_extra=least)
        session.tell(c, g0)
        first = session.ask()
        counts = c.tolist(), g0.tolist(), [0] * n
        assert first.tolist() == one_by_one(rule, *counts, prior, budget // rounds, least=least)
        starved += min(one_by_one(rule, *counts, prior, budget // rounds)) < least
        while not session.done:
            extra = session.ask()
            session.tell(rng.binomial(extra, rates), extra)
        assert (session.trials - g0).min() >= least
    assert starved, "no case in which the rule alone gives a prompt less"


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
        session, told = Session(n, min(budget, 30 * n), **made), [(c, np.full(n, 8))]
        session.tell(*told[0])
        asked = []
        while not session.done:
            again = Session(n, min(budget, 30 * n), **made)
            for earlier in told:
                again.tell(*earlier)
            extra = session.ask()
            np.testing.assert_array_equal(again.ask(), extra)
            np.testing.assert_array_equal(session.ask(), extra)
            asked.append(int(extra.sum()))
            told.append((rng.binomial(extra, rates), extra))
            session.tell(*told[-1])
        assert sum(asked) == min(budget, 30 * n)
        assert len(asked) == rounds
        assert max(asked) - min(asked) <= 1
        assert not session.ask().any()


def test_lost_rollouts_are_given_again() -> None:
    session = Session(2, 20, rounds=2)
    session.tell([0, 3], 4)
    asked = session.ask()
    session.tell([0, 0], asked - [1, 0])
    assert session.ask().sum() == 11
    session.tell([0, 0], session.ask())
    assert session.done


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"rounds": 0}, "rounds must be a whole number from 1, not 0"),
        ({"rounds": 11}, r"rounds \(11\) exceeds the budget \(10\)"),
        ({"stop": "first"}, "stop: 'first' is none of none, hit, mixed"),
        ({"rule": "nope"}, "rule: 'nope' is none of"),
        ({"rule": "hit_or_miss(x)"}, "needs a number, not 'x'"),
        ({"rule": "expected_worth(-1)"}, "r must be finite and not negative, not -1"),
        ({"rule": "expected_worth(1, 1)"}, "overlap must be from 0 to below 1, not 1"),
        ({"rule": "expected_worth(1, 0, 0)"}, "takes the noise of a hit and the overlap"),
        ({"rule": "first_hit(0)"}, "needs a whole number from 1"),
        ({"least_extra": 1, "rule": "knapsack"}, "marginal gain and stop none, not rule knapsack"),
        ({"least_extra": 1, "stop": "hit"}, "not rule hit_utility with stop hit"),
        ({"least_extra": 2, "rounds": 3}, "for 2 prompts exceeds the first round's 3 rollouts"),
        ({"least_extra": -1}, "least_extra must be a whole number from 0, not -1"),
        ({"rule": "hit_or_miss(-1)"}, "must be positive and finite, not -1"),
        ({"budget": -1}, "budget must be a whole number from 0, not -1"),
        ({"prompts": 0}, "prompts must be a whole number from 1, not 0"),
        ({"prior": ([1.0, 2.0, 3.0], 1.0)}, r"prior alpha must be a number or of shape \(2,\)"),
    ],
)
def test_a_session_that_cannot_be_is_refused_in_one_line(made: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Session(**{"prompts": 2, "budget": 10, **made})


@pytest.mark.parametrize(
    ("tells", "message"),
    [
        ([([0, 0], 0)], "rule mixed is defined from 1 pre-rollouts on, not 0"),
        ([([1, 2, 3], 4)], r"successes must be of shape \(2,\), not \(3,\)"),
        ([([5, 2], 4)], r"successes\[0\] = 5 must be in 0..trials = 4"),
        ([([1, 2], 4), ([0, 0], [6, 5])], r"this round's 11 and 0 before exceed the budget \(10\)"),
        ([([1, 2], 25)], r"max_group_size \(20\) is below trials\[0\] = 25"),
        ([([1, 2], 18)], r"budget \(10\) exceeds what max_group_size \(20\) leaves room for: 4"),
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
    session, by_token = Session(3, 24, rule), per_token(get_rule(rule), Lengths(1.0, (1.0,) * 9))
    session.tell([0, 3, 6], 8)
    found = []
    for weight in (0.1, 6.0):
        monkeypatch.setattr(sys.modules[__name__], "WEIGHT", weight)
        ways = [session.ask(), *(allocate([0, 3, 6], 8, 24, rule=way) for way in (rule, by_token))]
        found.append({tuple(extra.tolist()) for extra in ways})
    (before,), (after,) = found
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


def drained(session: Session) -> np.ndarray:
    """(N,) all that can be sampled now."""
    given = Counter(iter(session.next, None))
    return np.array([given[i] for i in range(N)])


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("rule", RULES)
def test_in_any_order_of_arrival_rounds_are_those_of_whole_rounds(rule: str, stop: str) -> None:
    rng = np.random.default_rng(0)
    for rounds in (1, 3):
        rates = rng.beta(0.5, 1.0, N)
        made: dict[str, Any] = {"rule": rule, "rounds": rounds, "stop": stop, "max_group_size": 30}
        whole, single = (Session(N, N * (G - G0), **made, **more) for more in ({}, {"pre_rollouts": G0}))
        asked = drained(single)
        assert asked.tolist() == [G0] * N
        while not single.done:
            hits = rng.binomial(asked, rates)
            whole.tell(hits, asked)
            outcomes = [(i, j < hits[i]) for i in range(N) for j in range(asked[i])]
            for place in rng.permutation(len(outcomes)):
                assert single.next() is None
                assert single.tell(*outcomes[place])
            asked = drained(single)
            assert asked.tolist() == whole.ask().tolist()
        assert single.trials.sum() == N * G
        assert single.next() is None


@pytest.mark.parametrize("rule", ["hit_utility", "first_hit", "variance", "knapsack", "uniform"])
def test_what_is_out_is_the_optimum_for_as_many(rule: str) -> None:
    """Rollouts in flight are of unknown outcome: k of them are where `allocate` puts k."""
    counts = np.random.default_rng(1).binomial(G0, 0.4, N)
    for k in (1, 5, 20):
        session = Session(N, N * (G - G0), rule, pre_rollouts=G0, in_flight=k)
        session.tell(counts, np.full(N, G0))
        given = drained(session)
        assert given.sum() == k
        if rule != "knapsack":  # its share for c = 0 depends on the budget, so divisions are not nested
            assert given.tolist() == allocate(counts, G0, k, rule=rule).tolist()


@pytest.mark.parametrize("settings", [{"rounds": 3}, {"in_flight": 6}], ids=["rounds", "in-flight"])
@pytest.mark.parametrize("seed", range(6))
def test_late_lost_and_repeated_results_leave_the_budget_exact(settings: dict[str, int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    rates = rng.beta(0.5, 1.0, N)

    def begin() -> Session:
        made = {"stop": "hit", "max_group_size": 40, "pre_rollouts": G0, **settings}
        return Session(N, N * (G - G0), "first_hit", **made)

    session, log, out, late, name = begin(), [], [], [], 0
    while not session.done:
        for prompt in iter(session.next, None):
            out.append((prompt, bool(rng.random() < rates[prompt]), f"rollout {name}"))
            name += 1
        event = rng.random()
        if event < 0.1:  # a rollout is given up, and arrives when it likes
            late.append(out.pop(rng.integers(len(out))))
            session.lost(late[-1][0])
        elif event < 0.15:  # a crash: those in flight are given anew and arrive as well
            late, out, session = late + out, [], begin()
            assert [session.tell(*told) for told in log] == [True] * len(log)
        else:
            source = late if late and rng.random() < 0.3 else out
            result = source.pop(rng.integers(len(source)))
            if session.tell(*result):
                log.append(result)
            assert not session.tell(*result)
    assert len(log) == N * G
    assert session.trials.sum() == N * G
    assert session.trials.min() >= G0
    assert session.successes.sum() == sum(success for _, success, _ in log)
    assert session.next() is None
    assert not any(session.tell(*result) for result in late + out)


@pytest.mark.parametrize(
    ("made", "told", "message"),
    [
        ({}, (0, True), "pre_rollouts: needed to tell one rollout"),
        ({"pre_rollouts": 2}, (7, True), r"prompt must be a whole number in 0..6, not 7"),
        ({"pre_rollouts": 2}, (0, 2), "success must be true or false, not 2"),
        ({"pre_rollouts": -1}, None, "pre_rollouts must be a whole number from 0, not -1"),
        ({"pre_rollouts": 2, "in_flight": 0}, None, "in_flight must be a whole number from 1, not 0"),
        ({"in_flight": 2}, None, r"in_flight \(2\) goes one rollout at a time: it needs pre_rollouts"),
        ({"pre_rollouts": 1, "rule": "variance"}, None, "rule variance is defined from 2 pre-rollouts on"),
        ({"pre_rollouts": 1, "rule": "first_hit(variance)"}, None, "is defined from 2 pre-rollouts on"),
        ({"pre_rollouts": 9, "max_group_size": 8}, None, r"max_group_size \(8\) is below trials\[0\] = 9"),
    ],
)
def test_what_cannot_be_told_is_refused(made: dict[str, Any], told: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Session(N, 20, **made).tell(*told)


def test_a_name_told_with_another_result_is_refused() -> None:
    session = Session(N, 20, pre_rollouts=1)
    assert session.tell(3, True, "a")
    with pytest.raises(ValueError, match=r"'a' was told as \(3, True\) before, and now as \(3, False\)"):
        session.tell(3, False, "a")
    with pytest.raises(ValueError, match="pre_rollouts: `next` needs it"):
        Session(N, 20).next()
