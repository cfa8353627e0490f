"""Empirical Bayes: one Beta prior for all prompts, fitted to the last cycles' counts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hora_rl.allocator.posterior import Float, Int
from hora_rl.allocator.priors.base import State
from hora_rl.allocator.priors.fixed import FixedPrior

Mask = NDArray[np.bool_]

CYCLES = 10
LEAST, MOST = 0.02, 50.0
"""Bounds of α and β. If all counts are equal, the likelihood has no maximum."""
LOW, HIGH = np.log([LEAST, MOST])
STEPS, TOLERANCE = 100, 1e-10


def fit_beta(successes: Int, trials: Int, times: Int | None = None) -> tuple[float, float]:
    """Maximum Beta-binomial likelihood (α, β) within LEAST..MOST for counts (m,), each seen `times` (m,).

    Newton's method on log α and log β, along a bound if the optimum lies there. Γ(α+c)/Γ(α) = Π_{j<c} (α+j),
    so the likelihood only needs how many counts exceed each j.

    >>> fit_beta(np.array([0, 1, 2]), np.array([2, 2, 2]))
    (1.0, 1.0)
    """
    weight = np.ones(len(successes)) if times is None else np.asarray(times, dtype=np.float64)
    hits, misses, all_ = (_exceeding(values, weight) for values in (successes, trials - successes, trials))
    log = np.zeros(2)
    best = _log_likelihood(np.exp(log), hits, misses, all_)
    for _ in range(STEPS):
        step = _newton(log, hits, misses, all_)
        allowed = _allowed(log, step)
        scale = 1.0
        while scale > 1e-6:
            new = np.clip(log + scale * allowed * step, LOW, HIGH)  # a step to a bound may round past it
            found = _log_likelihood(np.exp(new), hits, misses, all_)
            if found > best:
                break
            scale /= 2
        else:
            break
        # A shortened step may gain little although the optimum is far.
        done = scale * allowed == 1 and found - best < TOLERANCE * abs(best)
        log, best = new, found
        if done:
            break
    alpha, beta = np.round(np.exp(log), 6)  # the rest is rounding
    return float(alpha), float(beta)


def _exceeding(values: Int, weight: Float) -> Float:
    """(J,) total weight of values above j = 0, 1, …"""
    counted = np.bincount(values, weights=weight)
    above: Float = np.cumsum(counted[::-1])[::-1][1:].astype(np.float64)
    return above


def _log_likelihood(ab: Float, hits: Float, misses: Float, all_: Float) -> float:
    terms = ((hits, ab[0]), (misses, ab[1]), (all_, ab.sum()))
    one, two, three = (float(weight @ np.log(start + np.arange(len(weight)))) for weight, start in terms)
    return one + two - three


def _newton(log: Float, hits: Float, misses: Float, all_: Float) -> Float:
    """Uphill step (2,) in log (α, β) that stays inside the bounds at first. Zero at an optimum."""
    ab = np.exp(log)
    (g1, h1), (g2, h2), (g, h) = (
        _slopes(w, float(x)) for w, x in ((hits, ab[0]), (misses, ab[1]), (all_, ab.sum()))
    )
    gradient = np.array([g1 - g, g2 - g]) * ab
    curvature = np.outer(ab, ab) * (np.diag([h1, h2]) - h) + np.diag(gradient)
    # Solve without coordinates held at a bound. Zeroing them afterwards could point downhill.
    free = ~_outward(log, gradient)
    step = _solved(gradient, curvature, free)
    blocked = _outward(log, step)
    return _solved(gradient, curvature, free & ~blocked) if blocked.any() else step


def _solved(gradient: Float, curvature: Float, free: Mask) -> Float:
    """Newton step (2,) of the free coordinates; zero for the rest."""
    values, vectors = np.linalg.eigh(curvature * np.outer(free, free))
    # Absolute eigenvalues: uphill even if the likelihood is not concave here.
    return free * (vectors @ ((vectors.T @ (gradient * free)) / np.maximum(np.abs(values), 1e-9)))


def _outward(log: Float, direction: Float) -> Mask:
    """(2,) whether a coordinate is at a bound and `direction` points outside."""
    near = 1e-9  # a step to a bound ends within rounding of it
    return ((log < LOW + near) & (direction < 0)) | ((log > HIGH - near) & (direction > 0))


def _allowed(log: Float, step: Float) -> float:
    """The fraction of a step, at most 1, that stays within bounds and moves no logarithm by more than 1.

    Both coordinates are scaled alike: clipping one of them could point downhill.
    """
    moves = step != 0
    room = np.abs(np.where(step > 0, HIGH, LOW) - log)
    return float(np.min(np.minimum(room, 1.0)[moves] / np.abs(step)[moves], initial=1.0))


def _slopes(weight: Float, start: float) -> tuple[float, float]:
    """First and second derivative of Σ_j weight_j log(start + j)."""
    at = start + np.arange(len(weight))
    return float((weight / at).sum()), -float((weight / at**2).sum())


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
    """(m, 3) distinct pairs of successes and trials with their frequency."""
    pairs, times = np.unique(np.column_stack([successes, trials]), axis=0, return_counts=True)
    return np.column_stack([pairs, times])
