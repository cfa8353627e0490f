"""The log-loss of carried priors on cells made by hand."""

import numpy as np
import pytest
from scipy import stats

from research.carried_priors import DECAYS, PRIORS, measure, surprise
from research.study.archive import GROUPS, RATES


def record(visits: list[tuple[int, int, int, int, int]]) -> dict[str, list]:
    """Visits (step, row, c, Δ, hits of Phase B)."""
    step, row, c, extra, found = map(list, zip(*visits, strict=True))
    columns = {"step": step, "prompt_index": row, "successes": c}
    columns |= {"rounds": [[n] for n in extra], "round_hits": [[n] for n in found]}
    return {**{GROUPS + name: column for name, column in columns.items()}, RATES: [0.5] * len(step)}


def test_surprise_is_the_beta_binomial_of_a_sequence() -> None:
    expected = stats.betabinom(7, 2.5, 4.0).logpmf(3) - np.log(stats.binom(7, 0.5).pmf(3) * 2**7)
    assert surprise(np.array(2.5), np.array(4.0), np.array(3), 7) == pytest.approx(-expected)


def test_the_posterior_of_a_visit_is_the_decayed_prior_of_the_next() -> None:
    found = measure(record([(0, 0, 3, 4, 4), (0, 1, 0, 4, 0), (1, 0, 4, 4, 4), (1, 1, 0, 4, 0)]), 4, 4)
    for k, decay in ((0, 0.0), *((2 + i, d) for i, d in enumerate(DECAYS))):
        one = 1 + decay * np.array([3 + 4, 1]), np.array([4, 4])  # α, β of prompt 0, then its counts
        two = 1 + decay * np.array([0, 8]), np.array([0, 4])
        first, later = 0.0, 0.0
        for (prior, (hits, n)), extra in ((one, 4), (two, 0)):
            alpha, beta = prior
            first += float(surprise(alpha, beta, hits, n))
            later += float(surprise(alpha + hits, beta + n - hits, np.array(extra), 4))
        assert found[k, :2] == pytest.approx([first / 8, later / 8])
    assert found[0, 0] > found[PRIORS.index("carried(0.1)"), 0], "both came as before"
    assert (found[:, 2] <= 1).all()


def test_a_prompt_that_changed_is_foretold_worse_by_what_it_was() -> None:
    found = measure(record([(0, 0, 0, 20, 0), (1, 0, 4, 4, 4)]), 4, 4)
    assert found[0, 0] < found[PRIORS.index("carried(0.1)"), 0] < found[PRIORS.index("carried(1)"), 0]
