"""Pass@K by its formula."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hora_rl.evaluation.pass_at_k import estimates, pass_at_k


def exact(n: int, c: int, k: int) -> float:
    return float(1 - Fraction(math.comb(n - c, k), math.comb(n, k)))


@given(st.integers(1, 2000), st.data())
def test_it_is_the_formula_in_exact_arithmetic(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    assert pass_at_k([c], n, k)[0] == pytest.approx(exact(n, c, k), rel=1e-12, abs=0)


@pytest.mark.parametrize(
    ("n", "c", "k"),
    [(1024, 1, 1024), (1024, 1, 512), (1024, 1023, 1), (10**6, 3, 10**5), (10**6, 5 * 10**5, 7)],
)
def test_it_is_stable_at_and_far_beyond_the_papers_sample_sizes(n: int, c: int, k: int) -> None:
    assert pass_at_k([c], n, k)[0] == pytest.approx(exact(n, c, k), rel=1e-11)


@pytest.mark.parametrize(
    ("counts", "message"),
    [([], "at least one"), ([3, 9], "problem 1 has 9"), ([-1], "problem 0"), ([0.5], "integers")],
)
def test_impossible_counts_and_k_are_refused(counts: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pass_at_k(counts, 8, 1)
    for k in (0, -1, 9):
        with pytest.raises(ValueError, match=f"Pass@{k} .*8"):
            pass_at_k([1], 8, k)


def test_the_interval_is_repeatable_holds_the_value_and_narrows_with_problems() -> None:
    rng = np.random.default_rng(2)
    few, many = rng.integers(0, 65, 20), rng.integers(0, 65, 2000)
    first = estimates(few, 64, [1, 8, 64], seed=3)
    assert first == estimates(few, 64, [1, 8, 64], seed=3)
    assert all(e.low <= e.value <= e.high for e in first)
    [narrow] = estimates(many, 64, [1])
    assert narrow.high - narrow.low < (first[0].high - first[0].low) / 5


@pytest.mark.system
def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(4)
    truth, covered = 1 - np.mean((1 - rng.beta(1, 3, 200_000)) ** 8), 0
    for seed in range(100):
        counts = rng.binomial(32, rng.beta(1, 3, 100))
        estimate = estimates(counts, 32, [8], seed=seed)[0]
        covered += estimate.low <= truth <= estimate.high
    assert 0.87 <= covered / 100 <= 0.99
