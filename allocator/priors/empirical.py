"""Empirical Bayes: one Beta prior for all prompts, fitted to the counts of the last generation cycles."""

from __future__ import annotations

import numpy as np

from allocator.posterior import Float, Int
from allocator.priors.base import State, checked

CYCLES = 10
LEAST, MOST = 0.02, 50.0
"""Bounds of α and β. Where all counts are equal the likelihood grows without end."""
STEPS, TOLERANCE = 100, 1e-10


def fit_beta(successes: Int, trials: Int, times: Int | None = None) -> tuple[float, float]:
    """(α, β) of the highest Beta-binomial likelihood of counts (m,), each seen `times` (m,), within
    LEAST..MOST.

    Newton's method on the logarithms of α and β. As Γ(α+c)/Γ(α) = Π_{j<c} (α+j), the likelihood needs only
    how many counts exceed each j.

    >>> fit_beta(np.array([0, 1, 2]), np.array([2, 2, 2]))
    (1.0, 1.0)
    """
    weight = np.ones(len(successes)) if times is None else np.asarray(times, dtype=np.float64)
    hits, misses, all_ = (_exceeding(values, weight) for values in (successes, trials - successes, trials))
    log = np.zeros(2)
    best = _log_likelihood(np.exp(log), hits, misses, all_)
    for _ in range(STEPS):
        step = _newton(np.exp(log), hits, misses, all_)
        scale = 1.0
        while scale > 1e-6:
            new = np.clip(log + scale * step, np.log(LEAST), np.log(MOST))
            found = _log_likelihood(np.exp(new), hits, misses, all_)
            if found > best:
                break
            scale /= 2
        else:
            break
        done = found - best < TOLERANCE * abs(best)
        log, best = new, found
        if done:
            break
    alpha, beta = np.round(np.exp(log), 6)  # what differs beyond is rounding, not evidence
    return float(alpha), float(beta)


def _exceeding(values: Int, weight: Float) -> Float:
    """(J,) weight of the values above j = 0, 1, …"""
    counted = np.bincount(values, weights=weight)
    above: Float = np.cumsum(counted[::-1])[::-1][1:].astype(np.float64)
    return above


def _log_likelihood(ab: Float, hits: Float, misses: Float, all_: Float) -> float:
    terms = ((hits, ab[0]), (misses, ab[1]), (all_, ab.sum()))
    one, two, three = (float(weight @ np.log(start + np.arange(len(weight)))) for weight, start in terms)
    return one + two - three


def _newton(ab: Float, hits: Float, misses: Float, all_: Float) -> Float:
    """Step (2,) of the logarithms of α and β that goes uphill."""
    (g1, h1), (g2, h2), (g, h) = (
        _slopes(w, float(x)) for w, x in ((hits, ab[0]), (misses, ab[1]), (all_, ab.sum()))
    )
    gradient = np.array([g1 - g, g2 - g]) * ab
    curvature = np.outer(ab, ab) * (np.diag([h1, h2]) - h) + np.diag(gradient)
    values, vectors = np.linalg.eigh(curvature)
    # Where the likelihood is not concave, as steep as where it is: uphill all the same.
    return vectors @ ((vectors.T @ gradient) / np.maximum(np.abs(values), 1e-9))


def _slopes(weight: Float, start: float) -> tuple[float, float]:
    """First and second derivative of Σ_j weight_j log(start + j)."""
    at = start + np.arange(len(weight))
    return float((weight / at).sum()), -float((weight / at**2).sum())


class EmpiricalPrior:
    """Beta(α, β) by maximum likelihood of the last cycles' counts; Beta(alpha, beta) until the first."""

    name = "empirical"
    learns = True

    def __init__(self, alpha: float = 1.0, beta: float = 1.0) -> None:
        self._alpha, self._beta = alpha, beta
        self._cycles: list[Int] = []  # (m, 3) each: successes, trials, how often

    def predict(self, prompts: Int) -> tuple[Float, Float]:
        n = len(prompts)
        return checked(self.name, prompts, np.full(n, self._alpha), np.full(n, self._beta))

    def update(self, prompts: Int, successes: Int, trials: int) -> None:
        """Learn from one generation cycle: c_i (n,) successes of `trials` pre-rollouts each."""
        self._cycles = [*self._cycles, _counted(successes, np.full(len(successes), trials))][-CYCLES:]
        self._refit()

    def fit(self, prompts: Int, successes: Int, trials: Int) -> float:
        """Fit to recorded counts (m,); returns the mean negative log-likelihood per prompt, without its
        constant.
        """
        self._cycles = [_counted(successes, trials)]
        self._refit()
        weight = np.ones(len(successes))
        sums = (_exceeding(values, weight) for values in (successes, trials - successes, trials))
        return -_log_likelihood(np.array([self._alpha, self._beta]), *sums) / len(successes)

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
    """(m, 3) the distinct pairs of successes and trials, and how often each was seen."""
    pairs, times = np.unique(np.column_stack([successes, trials]), axis=0, return_counts=True)
    return np.column_stack([pairs, times])
