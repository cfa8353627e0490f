"""Rollouts one at a time: any order of arrival, late, lost and repeated results, the budget exact."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from hora_rl.allocator import Session, allocate
from tests.allocator.test_session import RULES, STOPS

N, G, G0 = 7, 12, 3


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
