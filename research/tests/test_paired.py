"""Paired comparisons of arms: against scipy, statsmodels' textbook values, and simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from research.report.paired import (
    area,
    at_matched,
    detectable,
    holm,
    not_inferior,
    paired_difference,
    power,
)


def test_a_difference_is_the_paired_t_test() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(1, 2, 12), rng.normal(0, 2, 12)
    found = paired_difference(a, b)
    expected = stats.ttest_rel(a, b)
    interval = expected.confidence_interval(0.95)
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.value == pytest.approx((a - b).mean())


def test_one_seed_has_a_difference_and_no_interval() -> None:
    found = paired_difference([0.6], [0.5])
    assert found.value == pytest.approx(0.1)
    assert math.isnan(found.low)
    assert math.isnan(found.p)
    assert not not_inferior(found, 0.02)
    with pytest.raises(ValueError, match="cannot be paired"):
        paired_difference([0.6, 0.7], [0.5])


def test_equal_arms_differ_by_nothing_with_certainty() -> None:
    found = paired_difference([0.5, 0.6], [0.5, 0.6])
    assert (found.value, found.low, found.high, found.p) == (0.0, 0.0, 0.0, 1.0)


def test_holm_steps_down_and_never_reverses_an_order() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({"a": 0.9, "b": 0.8}) == pytest.approx({"a": 1.0, "b": 1.0})


def test_an_area_is_the_mean_height_whatever_the_spacing() -> None:
    assert area([0, 1, 4], [0.5, 0.5, 0.5]) == pytest.approx(0.5)
    assert area([0, 2, 4], [0.0, 1.0, 0.0]) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="two points"):
        area([0], [1.0])


def test_a_curve_is_read_where_another_first_reaches_a_level() -> None:
    pass_1, pass_16 = [0.2, 0.4, 0.6, 0.5], [0.5, 0.7, 0.6, 0.4]
    assert at_matched(0.5, pass_1, pass_16) == pytest.approx(0.65)
    assert at_matched(0.1, pass_1, pass_16) == 0.5
    assert math.isnan(at_matched(0.9, pass_1, pass_16))


def test_power_is_how_often_simulated_studies_see_the_effect() -> None:
    rng = np.random.default_rng(1)
    draws = rng.normal(0.8, 1.0, (20_000, 10))
    seen = np.mean(stats.ttest_1samp(draws, 0.0, axis=1).pvalue < 0.05)
    assert power(0.8, 1.0, 10) == pytest.approx(float(seen), abs=0.01)
    assert power(detectable(1.0, 10), 1.0, 10) == pytest.approx(0.8)
    assert detectable(2.0, 10) == pytest.approx(2 * detectable(1.0, 10))


@pytest.mark.parametrize("seeds", [2, 3, 5, 20])
def test_power_rises_to_one_and_is_a_number_everywhere(seeds: int) -> None:
    found = [power(effect, 1.0, seeds) for effect in np.linspace(0, 60, 200)]
    assert all(0.0 <= p <= 1.0 + 1e-12 for p in found)
    assert found[0] == pytest.approx(0.05)
    assert found[-1] > 0.99
    assert power(detectable(0.07, seeds), 0.07, seeds) == pytest.approx(0.8, abs=1e-6)
