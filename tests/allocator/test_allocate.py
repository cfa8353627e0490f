"""The allocation is the optimum, exactly, and deterministic. Rules of other papers do what these publish, by
formulas written down as they stand there. The examples in the library's docstrings and pages are true."""

import doctest
import importlib
import pkgutil
from fractions import Fraction
from itertools import pairwise, product
from math import log
from typing import Any

import numpy as np
import pytest

import allocator
from hora_rl.allocator import Session, allocate
from hora_rl.allocator.posterior import posterior
from hora_rl.allocator.rules import RULES, get_rule, needs_counts
from hora_rl.allocator.rules.base import Marginal
from hora_rl.common.config import AllocationConfig
from hora_rl.common.load import ROOT

CASES = 1_000


def utilities(successes: int, trials: int, prior: tuple[float, float], most: int) -> list[Fraction]:
    """Σ_{l<k} E[p(1-p)^l] under the posterior for k = 0..most, by the paper's recurrence."""
    alpha, beta = Fraction(prior[0]) + successes, Fraction(prior[1]) + trials - successes
    gain, total = alpha / (alpha + beta), [Fraction(0)]
    for k in range(most):
        total.append(total[-1] + gain)
        gain *= (beta + k) / (alpha + beta + k + 1)
    return total


def best(tables: list[list[Fraction]], budget: int) -> Fraction:
    """The highest sum of utilities, by dynamic programming over prompts."""
    found = {0: Fraction(0)}
    for table in tables:
        new: dict[int, Fraction] = {}
        for spent, value in found.items():
            for d, worth in enumerate(table[: budget - spent + 1]):
                new[spent + d] = max(new.get(spent + d, Fraction(-1)), value + worth)
        found = new
    return found[budget]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("capped", [True, False])
def test_no_allocation_is_better(shared: bool, capped: bool) -> None:
    rng = np.random.default_rng(2 * shared + capped)
    for _ in range(400):
        n, trials, room = int(rng.integers(1, 5)), int(rng.integers(1, 10)), int(rng.integers(0, 5))
        c, budget = rng.integers(0, trials + 1, n), int(rng.integers(0, room * n + 1 if capped else 10))
        prior: Any = rng.choice([0.5, 1.0, 2.25, 3.0], 2) if shared else rng.uniform(0.2, 4.0, (2, n))
        extra = allocate(c, trials, budget, tuple(prior), max_group_size=trials + room if capped else None)
        pairs = np.broadcast_to(prior.T, (n, 2)).tolist()
        most = room if capped else budget
        tables = [utilities(int(k), trials, pair, most) for k, pair in zip(c, pairs, strict=True)]
        assert extra.sum() == budget
        assert sum(table[d] for table, d in zip(tables, extra, strict=True)) == best(tables, budget)


def test_shards_of_the_papers_mix_spend_as_the_paper_measured() -> None:
    rng = np.random.default_rng(7)
    spent = np.zeros(9)
    for _ in range(4000):
        c = rng.binomial(8, rng.beta(0.323, 0.143, 15))
        np.add.at(spent, c, allocate(c, 8, 360))
    share = spent / spent.sum()
    assert share[0] == pytest.approx(0.575, abs=0.015)
    assert share[8] == pytest.approx(0.113, abs=0.005)
    assert allocate([0] + [8] * 14, 8, 360)[0] == 274


def rising(posterior, level):  # type: ignore[no-untyped-def]
    return posterior.mean + level


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"successes": [1, 9]}, r"successes\[1\] = 9 must be in 0..trials = 8"),
        ({"successes": [1, -1]}, r"successes\[1\] = -1"),
        ({"successes": [0.5]}, "successes must be integers"),
        ({"budget": -1}, "budget must be a whole number from 0"),
        ({"budget": 9, "max_group_size": 12}, r"budget \(9\) exceeds .*:"),
        ({"prior": (0.0, 1.0)}, "prior alpha = 0.0 must be"),
        ({"prior": ([1.0, np.nan], 1.0)}, r"prior alpha\[1\] = nan"),
        ({"prior": ([1.0], 1.0)}, r"prior alpha must be .*"),
        ({"trials": [8, 8, 8]}, "trials must be"),
        ({"rule": "nope"}, "rule: 'nope' is none of"),
        ({"rule": 3}, "must be a name, .* not 3"),
        ({"rule": "math:pi"}, "is no function but 3.14"),
        ({"rule": f"{__name__}:rising", "budget": 9}, "rises from level 0 to 1"),
    ],
)
def test_bad_input_is_named_with_its_first_index(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        allocate(**{"successes": [1, 2], "trials": 8, "budget": 1, **arguments})


def test_a_shard_of_solved_prompts_costs_no_more_than_its_own_levels() -> None:
    """Absent unsolved prompts would still gain more at level 10^9 than a solved one at level 120."""
    for group_size in (32, 128, 1024):
        extra = allocate([8] * 15, 8, 15 * (group_size - 8))
        assert extra.tolist() == [group_size - 8] * 15


def zero_when_solved(posterior, level):  # type: ignore[no-untyped-def]
    return np.where(posterior.successes < posterior.trials, 1.0 / (1 + level), 0.0) * (level < 5)


@pytest.mark.parametrize("n", [20, 2000])
def test_a_users_rule_may_gain_nothing_and_the_budget_is_spent_all_the_same(n: int) -> None:
    rng = np.random.default_rng(0)
    successes = rng.integers(0, 9, n)
    prior = (rng.uniform(0.5, 2, n), rng.uniform(0.5, 2, n))
    rule = f"{__name__}:zero_when_solved"
    extra = allocate(successes, 8, 24 * n, prior=prior, rule=rule, max_group_size=64)
    assert extra.sum() == 24 * n
    assert extra[successes < 8].min() >= 5


@pytest.mark.parametrize(
    "rule", ["hit_utility", "variance", "variance(dr_grpo)", "variance(prior)", "expected_worth(5)"]
)
@pytest.mark.parametrize("cap", [None, 40])
def test_many_different_prompts_get_what_a_full_sort_of_their_gains_gives(rule: str, cap: int | None) -> None:
    rng = np.random.default_rng(1)
    n, budget = 1500, 24 * 1500
    successes, trials = rng.integers(0, 9, n), np.full(n, 8)
    prior = (rng.uniform(0.3, 3, n), rng.uniform(0.3, 3, n))
    extra = allocate(successes, trials, budget, prior=prior, rule=rule, max_group_size=cap)
    marginal_rule = get_rule(rule)
    assert isinstance(marginal_rule, Marginal)
    depth = int(extra.max()) + (cap is None)
    table = marginal_rule.table(posterior(successes, trials, *prior), depth)
    taken = np.arange(depth) < extra[:, None]
    assert extra.sum() == budget
    assert table[taken].min() >= table[~taken].max() - 1e-9


def gains(rule: str, c: int, n: int, levels: int) -> list[Fraction]:
    """Of one prompt under Beta(1, 1), which the rule's table holds too."""
    found = get_rule(rule)
    assert isinstance(found, Marginal)
    exact = [found.exact(Fraction(1 + c), Fraction(1 + n - c), c, n, k) for k in range(levels)]
    table = found.table(posterior(np.array([c]), np.array([n]), np.ones(1), np.ones(1)), levels)
    assert np.exp(table[0]) == pytest.approx([float(gain) for gain in exact])
    return exact


def test_worked_figures() -> None:
    """Beta(1, 1) and nothing sampled: E[p] w(1) = 1/2 · 1/2; then E[p(1-p)]/2 + E[p²]/6 = 1/12 + 1/18."""
    assert gains("expected_worth(1)", 0, 0, 2) == [Fraction(1, 4), Fraction(5, 36)]
    # Half of the gradient is common: r' = 2.
    assert gains("expected_worth(1, 0.5)", 0, 0, 2) == gains("expected_worth(2)", 0, 0, 2)
    # At most two hits count: E[p], E[p], then E[p(1-p²)] = 1/4.
    assert gains("first_hit(2)", 0, 0, 3) == [Fraction(1, 2), Fraction(1, 2), Fraction(1, 4)]
    # Four probes: B(2, 9)/B(1, 5) after four misses, B(6, 5)/B(5, 1) after four hits.
    assert gains("probe_aware", 0, 4, 1) == [Fraction(1, 18)]
    assert gains("probe_aware", 4, 4, 1) == [Fraction(1, 252)]


def test_without_noise_the_worth_is_a_first_hit_and_with_much_the_number_of_hits() -> None:
    counts = [0, 0, 1, 7, 8]
    first = allocate(counts, 8, 60, rule="first_hit")
    assert allocate(counts, 8, 60, rule="expected_worth(0)").tolist() == first.tolist()
    assert allocate(counts, 8, 60, rule="first_hit(1)").tolist() == first.tolist()
    assert allocate(counts, 8, 60, rule="expected_worth(1e9)").tolist() == [0, 0, 0, 0, 60]


def test_a_flat_gain_at_the_cut_loses_no_rollout() -> None:
    """The first two levels gain alike, so both are at the cut; trials differ, so prompts form classes."""
    assert allocate([0, 0, 0, 0], [2, 2, 3, 3], 3, rule="first_hit(2)").tolist() == [2, 1, 0, 0]
    many = allocate([0] * 400, [2, 3] * 200, 301, rule="first_hit(2)")
    assert many.sum() == 301
    assert many[1::2].sum() == 0


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
    assert needs_counts(name) == AllocationConfig(rule=name).needs_counts == (name != "uniform")


ROOMS = pkgutil.walk_packages(allocator.__path__, "allocator.")
MODULES = ["hora_rl.common.advantages", *(m.name for m in ROOMS)]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


@pytest.mark.parametrize(
    ("page", "least"), [("how-to/use-in-another-trainer", 10), ("explanation/method", 3)]
)
def test_pages_print_what_they_show(page: str, least: int) -> None:
    found = doctest.testfile(str(ROOT / "docs" / f"{page}.md"), module_relative=False)
    assert found.attempted >= least
    assert not found.failed


def test_what_the_library_exports_has_an_example() -> None:
    finder = doctest.DocTestFinder()
    for name in allocator.__all__:
        assert any(test.examples for test in finder.find(getattr(allocator, name))), name
