"""The Gaussian process of VIP over prompts (Nguyen et al., arXiv 2602.01601), and `gp-pooled`.

Similar prompts have similar success rates: the latent g = logit p has mean -1 and an RBF kernel over sentence
embeddings with the median distance as bandwidth. As in the authors' code, a cycle moves all means by the
regression on observed prompts, then sets those to their newest logit. The covariance stays the prior's:

    m ← m + K[:, t] (K[t, t] + 1e-4 I)^-1 (y - m[t]),    m[t] ← y = logit(clip(c / G0, 1e-6, 1 - 1e-6))

p̂ = sigmoid(m), strength 2. One cycle without a hit puts a prompt at 1e-6; `gp-pooled` is less certain.
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
NOISE = 1.0


class GaussianProcessPrior:
    """The authors' process. `features`: (n_prompts, d), one row per prompt."""

    name = "gp"
    learns = True

    def __init__(self, features: NDArray, seed: int = 0) -> None:
        self._x = np.asarray(features, dtype=np.float64)
        self._bandwidth = median_distance(self._x, seed)
        self._mean = np.full(len(self._x), PRIOR_MEAN)

    def mean(self, prompts: Int) -> Float:
        """Mean (n,) of the latent logit."""
        return self._mean[prompts]

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
        rate = np.clip(sigmoid(self.mean(prompts)), CLIP, 1 - CLIP)
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
        self._mean = self._of_state(state, "mean")

    def _kernel(self, a: Int, b: Int) -> Float:
        return np.exp(-0.5 * squared_distances(self._x[a], self._x[b]) / self._bandwidth**2)

    def _of_state(self, state: State, key: str) -> Float:
        """The array (n_prompts,) at `key`. Raises ValueError for the state of another process or data set."""
        if key not in state:
            raise ValueError(f"prior {self.name}: the state has no {key!r}; it is of another prior")
        if len(state[key]) != len(self._x):
            raise ValueError(
                f"prior {self.name}: the state is of {len(state[key])} prompts, the data set has "
                f"{len(self._x)}"
            )
        return np.array(state[key])


class PooledGaussianProcessPrior(GaussianProcessPrior):
    """The process with noisy observations, so that every cycle counts.

    A cycle observes logit(c/G0) with noise of variance `NOISE`; rates 0 and 1 are moved inside by half a
    rollout. Recursive updates with fixed noise equal conditioning on all observations at once, and repeated
    observations of one prompt equal their mean with less noise. So the state is two numbers per prompt. The
    inverse covariance of the m observed prompts grows by blocks, in O(m²) per cycle; it takes 8 m² bytes.
    """

    name = "gp-pooled"

    def __init__(self, features: NDArray, seed: int = 0) -> None:
        super().__init__(features, seed)
        self._count = np.zeros(len(self._x))
        self._sum = np.zeros(len(self._x))
        self._seen = np.zeros(0, dtype=np.int64)
        self._inverse = np.zeros((0, 0))

    def mean(self, prompts: Int) -> Float:
        observed = self._sum[self._seen] / self._count[self._seen] - PRIOR_MEAN
        return PRIOR_MEAN + self._kernel(prompts, self._seen) @ (self._inverse @ observed)

    def update(self, prompts: Int, successes: Int, trials: int) -> None:
        half = 0.5 / trials
        rate = np.clip(successes / trials, half, 1 - half)
        before = self._count.copy()
        np.add.at(self._count, prompts, 1)
        np.add.at(self._sum, prompts, np.log(rate / (1 - rate)))
        unique = np.unique(prompts)
        self._repeat(unique[before[unique] > 0], before)
        self._extend(unique[before[unique] == 0])

    def _extend(self, new: Int) -> None:
        """Add new prompts to the inverse by the Schur complement."""
        cross = self._kernel(self._seen, new)
        corner = self._kernel(new, new) + np.diag(NOISE / self._count[new])
        solved = self._inverse @ cross
        schur = np.linalg.inv(corner - cross.T @ solved)
        upper = -solved @ schur
        self._inverse = np.block([[self._inverse - upper @ solved.T, upper], [upper.T, schur]])
        self._seen = np.concatenate([self._seen, new])

    def _repeat(self, old: Int, before: Float) -> None:
        """Lower the noise of prompts seen again: a low-rank update of the diagonal (Woodbury)."""
        index = np.empty(len(self._x), dtype=np.int64)
        index[self._seen] = np.arange(len(self._seen))
        rows = index[old]
        change = NOISE / self._count[old] - NOISE / before[old]
        columns = self._inverse[:, rows]
        middle = np.linalg.inv(np.diag(1 / change) + columns[rows])
        self._inverse = self._inverse - columns @ middle @ columns.T

    def state_dict(self) -> State:
        return {"count": self._count.copy(), "sum": self._sum.copy()}

    def load_state_dict(self, state: State) -> None:
        self._count, self._sum = self._of_state(state, "count"), self._of_state(state, "sum")
        self._seen, self._inverse = np.zeros(0, dtype=np.int64), np.zeros((0, 0))
        self._extend(np.flatnonzero(self._count > 0))


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
        raise ValueError(
            "priors gp and gp-pooled: the median distance of the features is zero or not a number; check them"
        )
    return median
