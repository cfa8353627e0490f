"""The empirical prior: the likelihood's maximum, over the last cycles only."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import betaln
from scipy.stats import betabinom

from hora_rl.allocator.priors import make_prior
from hora_rl.allocator.priors.empirical import CYCLES, LEAST, MOST, fit_beta

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
    "none right": drawn(np.zeros(60)),
    "all right": drawn(np.ones(60)),
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
    found = fit_beta(successes, trials)
    assert LEAST <= min(found) <= max(found) <= MOST
    assert log_likelihood(*found) >= log_likelihood(*np.meshgrid(grid, grid)).max() - 0.02


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
