"""Protocols of priors, those that need only numpy, and the file of a prior's state, an .npz of plain arrays.

`fixed`: one Beta for all prompts, the paper's choice and the default. `empirical`: one Beta fitted to the
last cycles' counts (empirical Bayes). `gp`: the Gaussian process of VIP, see `GaussianProcessPrior`.
"""

import os
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hora_rl.allocator.posterior import Float, Int, prior_from_rate

State = dict[str, NDArray]
FIXED_STRENGTH = 2.0
"""α + β where the strength is not learned, as in Beta(1, 1)."""
CYCLES = 10
LEAST, MOST = 0.02, 50.0
"""Bounds of α and β. If all counts are equal, the likelihood has no maximum."""
NEIGHBOURS = np.array([(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if (a, b) != (0, 0)])
SMALLEST_STEP = 1e-8
PRIOR_MEAN = -1.0
JITTER = 1e-4
CLIP = 1e-6
MEDIAN_SAMPLE = 1000


class Prior(Protocol):
    """Predicts a Beta prior per prompt and learns after each generation cycle. Prompts are data set rows."""

    name: str
    learns: bool
    """Whether `update` changes predictions."""

    def predict(self, prompts: Int) -> tuple[Float, Float]:
        """(alpha0 (n,), beta0 (n,)) of prompts (n,), all positive; else ValueError naming the prior."""

    def update(self, prompts: Int, successes: Int, trials: int) -> None:
        """Learn from one generation cycle: c_i (n,) successes of `trials` rollouts per prompt (n,)."""

    def state_dict(self) -> State:
        """All state that `update` changes, as arrays."""

    def load_state_dict(self, state: State) -> None:
        """Restore a `state_dict()`."""


@runtime_checkable
class LearnedPrior(Prior, Protocol):
    """A prior that can be fitted to recorded rollouts before a run."""

    def fit(self, prompts: Int, successes: Int, trials: Int) -> float:
        """Fit to c_i successes (m,) of `trials` (m,) of prompts (m,); returns the mean loss per prompt."""


def checked(name: str, prompts: Int, alpha: Float, beta: Float) -> tuple[Float, Float]:
    """Return the prediction. Raises ValueError with prior and prompt unless finite and positive."""
    bad = ~(np.isfinite(alpha) & np.isfinite(beta) & (alpha > 0) & (beta > 0))
    if bad.any():
        i = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"prior {name}: predicts Beta({alpha[i]}, {beta[i]}) for prompt {int(prompts[i])}; both must be "
            "finite and positive. Fit it again (python -m hora_rl.deploy.fit_prior), or use the fixed prior"
        )
    return alpha, beta


class FixedPrior:
    name = "fixed"
    learns = False

    def __init__(self, alpha: float = 1.0, beta: float = 1.0) -> None:
        self._alpha = alpha
        self._beta = beta

    def predict(self, prompts: Int) -> tuple[Float, Float]:
        n = len(prompts)
        return checked(self.name, prompts, np.full(n, self._alpha), np.full(n, self._beta))

    def update(self, prompts: Int, successes: Int, trials: int) -> None:
        """Nothing to learn."""

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        """Nothing to restore."""


def save_state(path: str | Path, name: str, state: State) -> None:
    """Write the state of prior `name` to `path`, atomically."""
    path = Path(path)
    part = path.with_name(path.name + ".part")
    arrays: dict[str, Any] = {f"state/{k}": v for k, v in state.items()}
    with part.open("wb") as file:
        np.savez(file, prior=np.array(name), **arrays)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def load_state(path: str | Path, name: str) -> State:
    """The state in `path`. Raises ValueError if it belongs to another prior than `name`."""
    with np.load(path, allow_pickle=False) as arrays:
        prior = str(arrays["prior"]) if "prior" in arrays else "no prior"
        if prior != name:
            raise ValueError(
                f"{path}: holds the state of {prior}, not of {name}; fit it with `python -m "
                "hora_rl.deploy.fit_prior`"
            )
        return {k.removeprefix("state/"): arrays[k] for k in arrays.files if k != "prior"}


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


class GaussianProcessPrior:
    """The Gaussian process of VIP over prompts (Nguyen et al., arXiv 2602.01601). `features`: (n_prompts, d).

    Similar prompts have similar success rates: the latent g = logit p has mean -1 and an RBF kernel over
    sentence embeddings with the median distance as bandwidth. As in the authors' code, a cycle moves all
    means by the regression on observed prompts, then sets those to their newest logit. The covariance stays
    the prior's:

        m ← m + K[:, t] (K[t, t] + 1e-4 I)^-1 (y - m[t]),    m[t] ← y = logit(clip(c / G0, 1e-6, 1 - 1e-6))

    p̂ = sigmoid(m), strength 2. One cycle without a hit puts a prompt at 1e-6.
    """

    name = "gp"
    learns = True

    def __init__(self, features: NDArray, seed: int = 0) -> None:
        self._x = np.asarray(features, dtype=np.float64)
        rows = np.random.default_rng(seed).permutation(len(self._x))[:MEDIAN_SAMPLE]
        among = squared_distances(self._x[rows], self._x[rows])[np.triu_indices(len(rows), k=1)]
        self._bandwidth = float(np.median(np.sqrt(among))) if among.size else 0.0
        if not self._bandwidth > 0:
            raise ValueError(
                "prior gp: the median distance of the features is zero or not a number; check them"
            )
        self._mean = np.full(len(self._x), PRIOR_MEAN)

    def update(self, prompts: Int, successes: Int, trials: int) -> None:
        seen, index, count = np.unique(prompts, return_inverse=True, return_counts=True)
        # Rollouts of a prompt that occurs twice are pooled.
        rate = np.bincount(index, weights=successes) / (trials * count)
        rate = np.clip(rate, CLIP, 1 - CLIP)
        logit = np.log(rate / (1 - rate))
        covariance = self._kernel(seen, seen) + JITTER * np.eye(len(seen))
        moved = np.linalg.solve(covariance, logit - self._mean[seen])
        self._mean = self._mean + self._kernel(np.arange(len(self._x)), seen) @ moved
        self._mean[seen] = logit

    def predict(self, prompts: Int) -> tuple[Float, Float]:
        most = np.log((1 - CLIP) / CLIP)
        rate = 1 / (1 + np.exp(-np.clip(self._mean[prompts], -most, most)))
        alpha, beta = prior_from_rate(rate, FIXED_STRENGTH)
        return checked(self.name, prompts, alpha, beta)

    def fit(self, prompts: Int, successes: Int, trials: Int) -> float:
        """Condition on recorded rollouts, (m,) each; returns the mean binomial NLL per prompt before."""
        alpha, beta = self.predict(prompts)
        p = alpha / (alpha + beta)
        for g0 in np.unique(trials):
            here = trials == g0
            self.update(prompts[here], successes[here], int(g0))
        return float(np.mean(-successes * np.log(p) - (trials - successes) * np.log(1 - p)))

    def state_dict(self) -> State:
        return {"mean": self._mean.copy()}

    def load_state_dict(self, state: State) -> None:
        """Raises ValueError for the state of another prior or data set."""
        shape = state["mean"].shape if "mean" in state else None
        if shape != self._mean.shape:
            raise ValueError(f"prior {self.name}: the state has means of {shape}, not {self._mean.shape}")
        self._mean = np.array(state["mean"])

    def _kernel(self, a: Int, b: Int) -> Float:
        return np.exp(-0.5 * squared_distances(self._x[a], self._x[b]) / self._bandwidth**2)


def squared_distances(a: Float, b: Float) -> Float:
    """(n, d), (m, d) -> (n, m)."""
    product = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2 * a @ b.T
    return np.maximum(product, 0.0)
