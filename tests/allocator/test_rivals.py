"""Rules of other papers do what these publish: each against its formula, written down as it stands there."""

from fractions import Fraction
from itertools import pairwise, product
from math import log

import numpy as np
import pytest

from hora_rl.allocator import Session, allocate
from hora_rl.allocator.posterior import posterior
from hora_rl.allocator.rules import RULES, get_rule, needs_counts
from hora_rl.allocator.rules.base import Marginal
from hora_rl.common.config import Allocation

CASES = 1_000


@pytest.mark.parametrize("options", ["", "dr_grpo", "prior", "dr_grpo,prior"])
def test_variance_gains_what_a_rollout_takes_from_vips_variance(options: str) -> None:
    """VIP, theorems on the gradient's variance: p(1-p)/(n-1) for RLOO and p(1-p)(n-1)/n² for Dr. GRPO."""
    rule = get_rule(f"variance({options})" if options else "variance")
    assert isinstance(rule, Marginal)
    for a, b, c, n in product((1, Fraction(1, 3)), (1, 2), (0, 2, 4), (4, 7)):
        alpha, beta = (a, b) if "prior" in options else (a + c, b + n - c)
        p = Fraction(alpha, alpha + beta)
        sizes = range(n, n + 21)
        shares = [Fraction(k - 1, k * k) if "dr_grpo" in options else Fraction(1, k - 1) for k in sizes]
        expected = [p * (1 - p) * (now - later) for now, later in pairwise(shares)]
        assert [rule.exact(a + Fraction(c), Fraction(b + n - c), c, n, k) for k in range(20)] == expected
        post = posterior(np.array([c]), np.array([n]), np.array([float(a)]), np.array([float(b)]))
        np.testing.assert_allclose(np.exp(rule.table(post, 20)[0]), np.array(expected, float))


def knapsack_value(n: int, p: float) -> float:
    """Equation of the task's value: ProbNonZeroGradient(N, p) · InfoGain(p)."""
    return (1 - p**n - (1 - p) ** n) * p * (1 - p) ** 2


def test_knapsack_divides_and_falls_back_as_published() -> None:
    rng = np.random.default_rng(2)
    fell_back = 0
    for _ in range(CASES):
        n, budget = int(rng.integers(1, 4)), int(rng.integers(1, 25))
        trials = rng.integers(1, 10, n) if rng.random() < 0.5 else np.full(n, rng.integers(1, 10))
        c = rng.binomial(trials, rng.beta(0.5, 0.5, n))
        p = c / trials
        effective = [i for i in range(len(c)) if 0 < p[i] < 1]
        cost = sum(int(log(1 - 0.9) / log(max(p[i], 1 - p[i]))) for i in effective)
        others = [i for i in range(len(c)) if p[i] == 0] or [i for i in range(len(c)) if p[i] == 1]
        spare = budget if not effective else max(0, budget - cost) if others else 0
        fell_back += spare > 0
        found = allocate(c, trials, budget, rule="knapsack")
        assert found.sum() == budget
        assert found[others].sum() == spare
        assert not spare or np.ptp(found[others]) <= 1
        assert found[effective].sum() == budget - spare
        best = [0.0] + [-np.inf] * (budget - spare)
        for i in effective:  # dynamic programming, as their solver
            gains = [knapsack_value(int(trials[i]) + k, p[i]) for k in range(budget - spare + 1)]
            best = [max(best[w - k] + gains[k] for k in range(w + 1)) for w in range(budget - spare + 1)]
        mine = sum(knapsack_value(int(trials[i] + found[i]), p[i]) for i in effective)
        assert mine >= best[-1] - 1e-12
    assert CASES / 10 < fell_back < CASES


@pytest.mark.parametrize(("rule", "k"), [("ar3po", None), ("reinforce_ada", None), ("reinforce_ada(2)", 2)])
def test_rounds_sample_whom_reinforce_ada_and_ar3po_have_left(rule: str, k: int | None) -> None:
    """Every active prompt draws `repeat` a round; it leaves with a success, or with k of either outcome."""
    rng = np.random.default_rng(4)
    rounds = 0
    while rounds < CASES:
        n, repeat = int(rng.integers(1, 8)), int(rng.integers(1, 5))
        p = rng.beta(0.3, 0.3, n)
        first = rng.binomial(repeat, p)
        positives, negatives = first.copy(), repeat - first
        session = Session(n, 10 * n * repeat, rule, rounds=10)
        session.tell(first, repeat)
        while not session.done:
            finished = positives >= 1 if k is None else (positives >= k) & (negatives >= k)
            active = np.flatnonzero(~finished)
            asked = session.ask()
            given = active if active.size else np.arange(n)
            assert not asked[np.setdiff1d(np.arange(n), given)].any()
            assert asked.sum() == n * repeat
            fresh = session.trials[given] == session.trials[given][0]
            assert not fresh.all() or np.ptp(asked[given]) <= 1
            hits = rng.binomial(asked, p)
            positives, negatives = positives + hits, negatives + asked - hits
            session.tell(hits, asked)
            rounds += 1


@pytest.mark.parametrize("name", RULES)
def test_rules_and_configuration_agree_on_what_needs_counts(name: str) -> None:
    assert needs_counts(name) == Allocation(rule=name).needs_counts == (name != "uniform")
