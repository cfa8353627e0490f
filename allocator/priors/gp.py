"""The Gaussian process of VIP over prompts (Nguyen et al., arXiv 2602.01601).

Similar prompts have similar success rates: the latent g = logit p has mean -1 and an RBF kernel over sentence
embeddings with the median distance as bandwidth. As in the authors' code, a cycle moves all means by the
regression on observed prompts, then sets those to their newest logit. The covariance stays the prior's:

    m ← m + K[:, t] (K[t, t] + 1e-4 I)^-1 (y - m[t]),    m[t] ← y = logit(clip(c / G0, 1e-6, 1 - 1e-6))

p̂ = sigmoid(m), strength 2. One cycle without a hit puts a prompt at 1e-6.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hora_rl.allocator.posterior import Float, Int, prior_from_rate
from hora_rl.allocator.priors.base import FIXED_STRENGTH, State, checked
from hora_rl.allocator.special import sigmoid

PRIOR_MEAN = -1.0
JITTER = 1e-4
CLIP = 1e-6
MEDIAN_SAMPLE = 1000


class GaussianProcessPrior:
    """The authors' process. `features`: (n_prompts, d), one row per prompt."""

    name = "gp"
    learns = True

    def __init__(self, features: NDArray, seed: int = 0) -> None:
        self._x = np.asarray(features, dtype=np.float64)
        self._bandwidth = median_distance(self._x, seed)
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
        rate = np.clip(sigmoid(self._mean[prompts]), CLIP, 1 - CLIP)
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


def median_distance(x: Float, seed: int) -> float:
    """Median distance among at most 1,000 prompts. Raises ValueError if it is zero."""
    rows = np.random.default_rng(seed).permutation(len(x))[:MEDIAN_SAMPLE]
    distances = np.sqrt(squared_distances(x[rows], x[rows])[np.triu_indices(len(rows), k=1)])
    median = float(np.median(distances)) if distances.size else 0.0
    if not median > 0:
        raise ValueError("prior gp: the median distance of the features is zero or not a number; check them")
    return median
