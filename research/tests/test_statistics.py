"""Paired comparisons of arms: against scipy, textbook values, and simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from hora_rl.common.load import ROOT
from research.report.statistics import (
    area,
    at_matched,
    detectable,
    half_width,
    holm,
    paired_difference,
    power,
)
from research.study.archive import unpack
from research.study.exchange import first_rates, planned, rate
from research.study.starts import pool


def test_a_difference_is_the_paired_t_test() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(1, 2, 12), rng.normal(0, 2, 12)
    difference, expected = paired_difference(a, b), stats.ttest_rel(a, b)
    interval = expected.confidence_interval(0.95)
    assert difference.p == pytest.approx(expected.pvalue)
    assert (difference.low, difference.high) == pytest.approx((interval.low, interval.high))
    assert difference.value == pytest.approx((a - b).mean())
    copies = paired_difference(np.tile(a[:, None], 3), np.tile(b[:, None], 3))  # problems without spread
    assert (copies.p, copies.low) == pytest.approx((difference.p, difference.low))


def test_one_seed_has_a_difference_and_no_interval_and_equal_arms_differ_by_nothing() -> None:
    single = paired_difference([0.6], [0.5])
    assert single.value == pytest.approx(0.1)
    assert math.isnan(single.low)
    assert math.isnan(single.p)

    equal = paired_difference([0.5, 0.6], [0.5, 0.6])
    assert (equal.value, equal.low, equal.high, equal.p) == (0.0, 0.0, 0.0, 1.0)
    with pytest.raises(ValueError, match="cannot be paired"):
        paired_difference([0.6, 0.7], [0.5])


# Standard deviations of seeds, problems and what is peculiar to a seed on a problem.
@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize(
    "spreads", [(0.05, 0.0, 0.02), (0.05, 0.05, 0.05), (0.04, 0.3, 0.1), (0.0, 0.3, 0.0), (0.0, 0.0, 0.1)]
)
def test_intervals_over_seeds_and_problems_cover_the_truth_as_promised(
    seeds: int, spreads: tuple[float, float, float]
) -> None:
    random, trials = np.random.default_rng(3), 2000
    a, b, both = spreads
    values = random.normal(0, a, (trials, seeds, 1)) + random.normal(0, b, (trials, 1, 60))
    values = np.moveaxis(values + random.normal(0, both, (trials, seeds, 60)), 0, 2)
    held = np.abs(values.mean(axis=(0, 1))) <= half_width(values)  # the truth is 0
    assert held.mean() >= 0.93


def test_pairing_removes_what_problems_share_and_counts_the_rest_once() -> None:
    random = np.random.default_rng(0)
    hard = random.uniform(0, 0.9, (1, 40)) + random.normal(0, 0.01, (5, 40))
    difference = paired_difference(hard + 0.05 + random.normal(0, 1e-4, (5, 40)), hard)
    assert (difference.low, difference.high) == pytest.approx((0.05, 0.05), abs=1e-3)
    assert half_width(hard) > 0.05
    noise = random.normal(0, 0.1, (5, 60, 2000))
    of_seeds = stats.t.ppf(0.975, 4) * stats.sem(noise.mean(axis=1), axis=0)
    assert half_width(noise).mean() < 1.1 * of_seeds.mean()


def test_the_p_value_is_the_level_at_which_the_interval_reaches_zero() -> None:
    rng = np.random.default_rng(2)
    d = 0.03 + rng.normal(0, 0.05, (5, 1)) + rng.normal(0, 0.1, (1, 40)) + rng.normal(0, 0.1, (5, 40))
    difference = paired_difference(d, np.zeros_like(d))
    assert float(half_width(d, difference.p)) == pytest.approx(abs(difference.value))


def test_holm_steps_down_and_never_reverses_an_order() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    assert holm([math.nan, 0.01, 0.02]) == pytest.approx([math.nan, 0.02, 0.02], nan_ok=True)
    assert holm([]) == []


def test_an_area_is_the_mean_height_whatever_the_spacing() -> None:
    assert area([0, 1, 4], [0.5, 0.5, 0.5]) == pytest.approx(0.5)
    assert area([0, 2, 4], [[0.0, 1.0], [1.0, 1.0], [0.0, 1.0]]) == pytest.approx(np.array([0.5, 1.0]))


def test_a_curve_is_read_where_another_first_reaches_a_level() -> None:
    pass_1, pass_16 = [0.2, 0.4, 0.6, 0.5], [0.5, 0.7, 0.6, 0.4]
    assert at_matched(0.5, pass_1, pass_16) == pytest.approx(0.65)
    assert at_matched(0.1, pass_1, pass_16) == 0.5
    assert math.isnan(at_matched(0.9, pass_1, pass_16))


@pytest.mark.parametrize("seeds", [2, 3, 5, 20])
def test_power_is_how_often_simulated_studies_see_the_effect_and_a_number_everywhere(seeds: int) -> None:
    draws = np.random.default_rng(1).normal(0.8, 1.0, (20_000, seeds))
    seen = np.mean(stats.ttest_1samp(draws, 0.0, axis=1).pvalue < 0.05)
    assert power(0.8, 1.0, seeds) == pytest.approx(float(seen), abs=0.01)
    powers = [power(effect, 1.0, seeds) for effect in np.linspace(0, 60, 200)]
    assert all(0.0 <= p <= 1.0 + 1e-12 for p in powers)
    assert powers[0] == pytest.approx(0.05)
    assert powers[-1] > 0.99
    assert power(detectable(0.07, seeds), 0.07, seeds) == pytest.approx(0.8, abs=1e-6)


def test_equal_errors_give_the_mean_of_starts_with_their_own_spread() -> None:
    values = np.array([1.0, 2.0, 6.0, 7.0])
    pooled = pool(list(values), [0.5] * 4)
    assert pooled.value == pytest.approx(4.0)
    assert pooled.half == pytest.approx(stats.t.ppf(0.975, 3) * stats.sem(values))
    between = values.var(ddof=1) - 0.25
    reach = stats.t.ppf(0.975, 2) * np.sqrt(between + stats.sem(values) ** 2)
    assert (pooled.low, pooled.high) == pytest.approx((4.0 - reach, 4.0 + reach))
    alike = pool([1.0, 1.0, 1.0], [0.3, 0.3, 0.3])
    assert alike.half == pytest.approx(stats.t.ppf(0.975, 2) * 0.3 / np.sqrt(3)), "no surer than its errors"
    with pytest.raises(ValueError, match="three"):
        pool([1.0, 2.0], [0.1, 0.1])


def test_an_exchange_rate_is_the_slope_through_the_origin_of_paired_gains() -> None:
    value, half = rate([np.array([1.0, 2.0, 3.0]), np.array([4.0, 4.0, 4.0])], np.array([2.0, 4.0]))
    slopes = [(2 * a + 4 * 4) / 20 for a in (1, 2, 3)]
    assert value == pytest.approx(np.mean(slopes))
    assert half == pytest.approx(4.3027 * np.std(slopes, ddof=1) / np.sqrt(3), rel=1e-4)


def test_planned_hits_are_those_of_the_first_policys_rates() -> None:
    archive = unpack(ROOT / "research" / "results" / "many.json.xz")
    rates = first_rates([archive])
    assert [len(batch) for batch in rates] == [16] * 10
    assert abs(planned(archive, "grpo", rates)) < 0.5
    assert planned(archive, "hora", rates) < planned(archive, "likelihood-stop", rates)
