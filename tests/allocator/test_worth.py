"""Rules of what hits are worth, by worked figures, by integration and against every division there is."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import beta as beta_density
from scipy.stats import binom

from hora_rl.allocator import Session, allocate
from hora_rl.allocator.posterior import Posterior
from hora_rl.allocator.rules import get_rule
from hora_rl.allocator.rules.base import Marginal


def gains(rule: str, c: int, n: int, levels: int) -> np.ndarray:
    """(levels,) of one prompt under Beta(1, 1)."""
    found = get_rule(rule)
    assert isinstance(found, Marginal)
    post = Posterior(np.array([1.0 + c]), np.array([1.0 + n - c]), np.array([c]), np.array([n]))
    table = found.table(post, levels)[0]
    assert found.exact is not None
    exact = [float(found.exact(Fraction(1 + c), Fraction(1 + n - c), c, n, k)) for k in range(levels)]
    assert np.exp(table) == pytest.approx(exact)
    return np.exp(table)


def test_worked_figures() -> None:
    """Beta(1, 1) and nothing sampled: E[p] w(1) = 1/2 · 1/2; then E[p(1-p)]/2 + E[p²]/6 = 1/12 + 1/18."""
    assert gains("expected_worth(1)", 0, 0, 2) == pytest.approx([1 / 4, 5 / 36])
    # At most two hits count: E[p], E[p], then E[p(1-p²)] = 1/4.
    assert gains("first_hit(2)", 0, 0, 3) == pytest.approx([1 / 2, 1 / 2, 1 / 4])
    # Four probes: B(2, 9)/B(1, 5) after four misses, B(6, 5)/B(5, 1) after four hits.
    assert gains("probe_aware", 0, 4, 1) == pytest.approx([1 / 18])
    assert gains("probe_aware", 4, 4, 1) == pytest.approx([1 / 252])


@pytest.mark.parametrize("r", [0.5, 3.0, 17.0])
def test_the_gain_is_what_one_more_rollout_adds_to_the_expected_worth(r: float) -> None:
    p = (np.arange(20_000) + 0.5) / 20_000
    for c, n in ((0, 8), (3, 8), (8, 8)):
        density = beta_density.pdf(p, 1 + c, 1 + n - c) / len(p)
        worth = []
        for extra in range(7):
            hits = c + np.arange(extra + 1)
            chance = binom.pmf(np.arange(extra + 1)[:, None], extra, p) @ density
            worth.append(float(chance @ (hits / (hits + r))))
        assert gains(f"expected_worth({r})", c, n, 6) == pytest.approx(np.diff(worth), abs=1e-6)


@pytest.mark.parametrize("rule", ["expected_worth(3)", "first_hit(2)", "probe_aware"])
def test_no_division_is_worth_more(rule: str) -> None:
    counts, budget = [0, 1, 4], 9
    each = np.array([[0.0, *np.cumsum(gains(rule, c, 4, budget))] for c in counts])
    best = max(
        sum(each[i, k] for i, k in enumerate(division))
        for division in itertools.product(range(budget + 1), repeat=3)
        if sum(division) == budget
    )
    assert each[np.arange(3), allocate(counts, 4, budget, rule=rule)].sum() == pytest.approx(best)


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


def test_a_prompt_is_served_until_its_hits() -> None:
    session = Session(3, 40, "first_hit(2)", rounds=2)
    session.tell([0, 1, 2], 4)
    assert session.ask()[2] == 0
    session.tell([0, 1, 0], session.ask())
    assert session.ask()[1:].tolist() == [0, 0]
