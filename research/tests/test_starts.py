"""Pooling the differences of several warm starts."""

import numpy as np
import pytest
from scipy import stats

from research.study.starts import pool


def test_equal_errors_give_the_mean_of_starts_with_their_own_spread() -> None:
    values = np.array([1.0, 2.0, 6.0, 7.0])
    found = pool(list(values), [0.5] * 4)
    assert found.value == pytest.approx(4.0)
    assert found.half == pytest.approx(stats.t.ppf(0.975, 3) * stats.sem(values))
    between = values.var(ddof=1) - 0.25
    reach = stats.t.ppf(0.975, 2) * np.sqrt(between + stats.sem(values) ** 2)
    assert (found.low, found.high) == pytest.approx((4.0 - reach, 4.0 + reach))


def test_starts_that_agree_are_no_surer_than_their_errors() -> None:
    found = pool([1.0, 1.0, 1.0], [0.3, 0.3, 0.3])
    assert found.half == pytest.approx(stats.t.ppf(0.975, 2) * 0.3 / np.sqrt(3))


def test_two_starts_foretell_nothing() -> None:
    with pytest.raises(ValueError, match="three"):
        pool([1.0, 2.0], [0.1, 0.1])
