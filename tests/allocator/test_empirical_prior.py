"""The empirical prior: the likelihood's maximum, over the last cycles only, restored from its state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import betaln
from scipy.stats import betabinom

from hora_rl.allocator.priors import make_prior
from hora_rl.allocator.priors.base import LearnedPrior
from hora_rl.allocator.priors.empirical import CYCLES, LEAST, MOST, fit_beta
from hora_rl.allocator.priors.files import load_state, save_state

G0 = 8


def by_scipy(successes: np.ndarray, trials: np.ndarray) -> tuple[float, float]:
    def loss(log: np.ndarray) -> float:
        return -float(betabinom.logpmf(successes, trials, *np.exp(log)).sum())

    found = minimize(loss, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-11})
    return tuple(np.exp(found.x))


@pytest.mark.parametrize("truth", [(0.323, 0.143), (1.0, 1.0), (0.5, 4.0), (6.0, 2.0)])
def test_it_is_the_maximum_that_a_general_optimiser_finds(truth: tuple[float, float]) -> None:
    rng = np.random.default_rng(1)
    for trials in (np.full(400, G0), rng.integers(1, 40, 400)):
        successes = rng.binomial(trials, rng.beta(*truth, 400))
        np.testing.assert_allclose(fit_beta(successes, trials), by_scipy(successes, trials), rtol=2e-4)


def test_it_comes_near_the_truth_with_many_counts() -> None:
    rng = np.random.default_rng(2)
    counts = rng.binomial(G0, rng.beta(0.323, 0.143, 100_000))
    np.testing.assert_allclose(fit_beta(counts, np.full(len(counts), G0)), (0.323, 0.143), rtol=0.03)


@pytest.mark.parametrize("count", [0, 4, G0])
def test_equal_counts_stay_within_bounds(count: int) -> None:
    alpha, beta = fit_beta(np.full(60, count), np.full(60, G0))
    assert LEAST <= alpha <= MOST
    assert LEAST <= beta <= MOST
    assert alpha / (alpha + beta) == pytest.approx(count / G0, abs=0.02)


def drawn(rates: np.ndarray, seed: int = 6) -> tuple[np.ndarray, np.ndarray]:
    trials = np.full(len(rates), G0)
    return np.random.default_rng(seed).binomial(trials, rates), trials


def any_counts(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Counts of equal prompts, or of a Beta anywhere within the bounds; many have the optimum on one."""
    rng = np.random.default_rng(seed)
    prompts, trials = rng.choice([4, 20, 60, 600]), rng.choice([1, 2, 4, 8, 16])
    alike = np.full(prompts, rng.choice([0.02, 0.1, 0.4, 0.9]))
    rates = alike if seed % 3 == 0 else rng.beta(*np.exp(rng.uniform(-4, 4, 2)), prompts)
    return rng.binomial(trials, rates), np.full(prompts, trials)


ON_A_BOUND = {
    "60 at 0.1": drawn(np.full(60, 0.1)),
    "600 at 0.1": drawn(np.full(600, 0.1)),
    "60 at 0.9": drawn(np.full(60, 0.9)),
    "90% never, 10% always": drawn(np.repeat([0.0, 1.0], [54, 6])),
}


@pytest.mark.parametrize(
    ("successes", "trials"),
    [
        *(pytest.param(*counts, id=name) for name, counts in ON_A_BOUND.items()),
        *(pytest.param(*any_counts(seed), id=f"seed {seed}") for seed in range(40)),
    ],
)
def test_no_alpha_and_beta_within_the_bounds_are_likelier(successes: np.ndarray, trials: np.ndarray) -> None:
    def log_likelihood(alpha: np.ndarray | float, beta: np.ndarray | float) -> np.ndarray:
        pairs, times = np.unique(np.column_stack([successes, trials]), axis=0, return_counts=True)
        total = -len(trials) * betaln(alpha, beta)
        for (hits, tried), often in zip(pairs, times, strict=True):
            total = total + often * betaln(alpha + hits, beta + tried - hits)
        return total

    grid = np.geomspace(LEAST, MOST, 90)
    best = log_likelihood(*np.meshgrid(grid, grid)).max()
    assert log_likelihood(*fit_beta(successes, trials)) >= best - 0.02


def test_it_is_the_given_prior_until_the_first_cycle_and_then_that_of_the_last_ten() -> None:
    rng = np.random.default_rng(3)
    prior = make_prior("empirical", 60, alpha=0.7, beta=2.0)
    alpha, beta = prior.predict(np.arange(60))
    assert set(zip(alpha.tolist(), beta.tolist(), strict=True)) == {(0.7, 2.0)}
    cycles = [rng.binomial(G0, rng.beta(0.323 + k / 10, 0.5, 60)) for k in range(CYCLES + 3)]
    for successes in cycles:
        prior.update(np.arange(60), successes, G0)
    kept = np.concatenate(cycles[-CYCLES:])
    alpha, beta = prior.predict(np.arange(2))
    assert (alpha[0], beta[0]) == fit_beta(kept, np.full(len(kept), G0))


def test_restored_from_a_file_it_goes_on_as_if_never_stopped(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    prior = make_prior("empirical", 60)
    rows = np.arange(60)
    for _ in range(CYCLES + 1):
        prior.update(rows, rng.binomial(G0, rng.beta(0.5, 0.8, 60)), G0)
    save_state(tmp_path / "prior.npz", "empirical", prior.state_dict())
    again = make_prior("empirical", 60, state=load_state(tmp_path / "prior.npz", "empirical"))
    for _ in range(2):
        successes = rng.binomial(G0, rng.beta(0.5, 0.8, 60))
        for one in (prior, again):
            one.update(rows, successes, G0)
    np.testing.assert_array_equal(prior.predict(rows), again.predict(rows))


def test_it_can_be_fitted_before_a_run() -> None:
    rng = np.random.default_rng(5)
    successes, trials = rng.binomial(G0, rng.beta(0.3, 0.2, 300)), np.full(300, G0)
    prior = make_prior("empirical", 300)
    assert isinstance(prior, LearnedPrior)
    prior.fit(np.arange(300), successes, trials)
    alpha, beta = prior.predict(np.arange(1))
    assert (alpha[0], beta[0]) == fit_beta(successes, trials)
