"""Empirical Bayes: one Beta prior for all prompts, fitted to the last cycles' counts."""

from __future__ import annotations

import numpy as np

from hora_rl.allocator.posterior import Float, Int
from hora_rl.allocator.priors.base import FixedPrior, State

CYCLES = 10
LEAST, MOST = 0.02, 50.0
"""Bounds of α and β. If all counts are equal, the likelihood has no maximum."""
NEIGHBOURS = np.array([(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if (a, b) != (0, 0)])
SMALLEST_STEP = 1e-8


def fit_beta(successes: Int, trials: Int, times: Int | None = None) -> tuple[float, float]:
    """Maximum Beta-binomial likelihood (α, β) within LEAST..MOST for counts (m,), each seen `times` (m,).

    A search in log α and log β: to the likeliest of the eight neighbours while one is likelier, else with
    half the step. The ridge of equal means runs along a diagonal, so no step crosses it.

    >>> fit_beta(np.array([0, 1, 2]), np.array([2, 2, 2]))
    (1.0, 1.0)
    """
    weight = np.ones(len(successes)) if times is None else np.asarray(times, dtype=np.float64)
    exceeding = _exceeding(successes, trials, weight)
    point, step = np.zeros(2), 1.0
    best = _log_likelihood(np.exp(point), *exceeding)
    while step > SMALLEST_STEP:
        around = np.clip(point + step * NEIGHBOURS, *np.log([LEAST, MOST]))
        likelihoods = _log_likelihood(np.exp(around), *exceeding)
        if likelihoods.max() > best:
            point, best = around[likelihoods.argmax()], likelihoods.max()
        else:
            step /= 2
    alpha, beta = np.round(np.exp(point), 6)  # the rest is rounding
    return float(alpha), float(beta)


def _exceeding(successes: Int, trials: Int, weight: Float) -> list[Float]:
    """Total weight of the successes, failures and trials above j = 0, 1, …, each (J,)."""
    counted = (np.bincount(values, weights=weight) for values in (successes, trials - successes, trials))
    return [np.cumsum(each[::-1], dtype=np.float64)[::-1][1:] for each in counted]


def _log_likelihood(ab: Float, hits: Float, misses: Float, all_: Float) -> Float:
    """(…,) of α, β (…, 2). As Γ(α+c)/Γ(α) = Π_{j<c} (α+j), it only needs how many counts exceed each j."""
    of_hits, of_misses, of_all = (
        np.log(start[..., None] + np.arange(len(weight))) @ weight
        for weight, start in ((hits, ab[..., 0]), (misses, ab[..., 1]), (all_, ab.sum(-1)))
    )
    return np.asarray(of_hits + of_misses - of_all)


class EmpiricalPrior(FixedPrior):
    """Beta(α, β) fitted by maximum likelihood to the last cycles; Beta(alpha, beta) before the first."""

    name = "empirical"
    learns = True

    def __init__(self, alpha: float = 1.0, beta: float = 1.0) -> None:
        super().__init__(alpha, beta)
        self._cycles: list[Int] = []  # (m, 3) each: successes, trials, how often

    def update(self, prompts: Int, successes: Int, trials: int) -> None:
        """Learn from one generation cycle: c_i (n,) successes of `trials` pre-rollouts each."""
        self._cycles = [*self._cycles, _counted(successes, np.full(len(successes), trials))][-CYCLES:]
        self._refit()

    def fit(self, prompts: Int, successes: Int, trials: Int) -> float:
        """Fit to recorded counts (m,); returns the mean NLL per prompt without its constant."""
        self._cycles = [_counted(successes, trials)]
        self._refit()
        sums = _exceeding(successes, trials, np.ones(len(successes)))
        return -float(_log_likelihood(np.array([self._alpha, self._beta]), *sums)) / len(successes)

    def state_dict(self) -> State:
        cycle = np.repeat(np.arange(len(self._cycles)), [len(rows) for rows in self._cycles])
        rows = np.concatenate(self._cycles) if self._cycles else np.zeros((0, 3), dtype=np.int64)
        return {"beta": np.array([self._alpha, self._beta]), "counts": np.column_stack([cycle, rows])}

    def load_state_dict(self, state: State) -> None:
        self._alpha, self._beta = map(float, state["beta"])
        counts = state["counts"]
        self._cycles = [counts[counts[:, 0] == k, 1:] for k in np.unique(counts[:, 0])]

    def _refit(self) -> None:
        self._alpha, self._beta = fit_beta(*np.concatenate(self._cycles).T)


def _counted(successes: Int, trials: Int) -> Int:
    """(m, 3) distinct pairs of successes and trials with their frequency."""
    pairs, times = np.unique(np.column_stack([successes, trials]), axis=0, return_counts=True)
    return np.column_stack([pairs, times])
