"""A Gaussian process over prompts, after VIP (Nguyen et al., arXiv 2602.01601): similar prompts, similar
success rates.

Latent g = logit p with mean -1 and an RBF kernel over sentence embeddings, bandwidth the median distance. A
cycle observes logit(c/G0), rates of 0 and 1 drawn in by half a rollout, with noise of variance `NOISE`; the
paper gives neither, so both are ours. p̂ = sigmoid(posterior mean), strength 2.

A recursive update with fixed noise equals conditioning on all observations at once, and repeated observations
of one prompt equal their mean with less noise. So the state is two numbers per prompt, and the inverse of the
observed prompts' covariance grows by blocks: O(m²) per cycle for m observed prompts, never more than the data
set has.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hora_rl.allocator.posterior import Float, Int, prior_from_rate
from hora_rl.allocator.priors.base import FIXED_STRENGTH, State, checked
from hora_rl.allocator.special import sigmoid

PRIOR_MEAN = -1.0
NOISE = 1.0
MEDIAN_SAMPLE = 1000


class GaussianProcessPrior:
    """`features`: (n_prompts, d), one row per prompt. Memory grows to 8 m² bytes for m observed prompts."""

    name = "gp"
    learns = True

    def __init__(self, features: NDArray, seed: int = 0) -> None:
        self._x = np.asarray(features, dtype=np.float64)
        self._bandwidth = median_distance(self._x, seed)
        self._count = np.zeros(len(self._x))
        self._sum = np.zeros(len(self._x))
        self._seen = np.zeros(0, dtype=np.int64)
        self._inverse = np.zeros((0, 0))

    def predict(self, prompts: Int) -> tuple[Float, Float]:
        mean = np.full(len(prompts), PRIOR_MEAN)
        if len(self._seen):
            observed = self._sum[self._seen] / self._count[self._seen] - PRIOR_MEAN
            mean = mean + self._kernel(prompts, self._seen) @ (self._inverse @ observed)
        rate = np.clip(sigmoid(mean), 1e-6, 1 - 1e-6)
        alpha, beta = prior_from_rate(rate, FIXED_STRENGTH)
        return checked(self.name, prompts, alpha, beta)

    def update(self, prompts: Int, successes: Int, trials: int) -> None:
        half = 0.5 / trials
        rate = np.clip(successes / trials, half, 1 - half)
        before = self._count.copy()
        np.add.at(self._count, prompts, 1)
        np.add.at(self._sum, prompts, np.log(rate / (1 - rate)))
        unique = np.unique(prompts)
        self._repeat(unique[before[unique] > 0], before)
        self._extend(unique[before[unique] == 0])

    def fit(self, prompts: Int, successes: Int, trials: Int) -> float:
        """Condition on recorded rollouts, (m,) each; returns the mean binomial NLL per prompt beforehand."""
        alpha, beta = self.predict(prompts)
        p = alpha / (alpha + beta)
        for g0 in np.unique(trials):
            here = trials == g0
            self.update(prompts[here], successes[here], int(g0))
        return float(np.mean(-successes * np.log(p) - (trials - successes) * np.log(1 - p)))

    def _extend(self, new: Int) -> None:
        """Grow the inverse by prompts seen for the first time, through the Schur complement."""
        if not len(new):
            return
        cross = self._kernel(self._seen, new)
        corner = self._kernel(new, new) + np.diag(NOISE / self._count[new])
        solved = self._inverse @ cross
        schur = np.linalg.inv(corner - cross.T @ solved)
        upper = -solved @ schur
        self._inverse = np.block([[self._inverse - upper @ solved.T, upper], [upper.T, schur]])
        self._seen = np.concatenate([self._seen, new])

    def _repeat(self, old: Int, before: Float) -> None:
        """Less noise for prompts seen again: a low-rank change of the diagonal (Woodbury)."""
        if not len(old):
            return
        place = np.empty(len(self._x), dtype=np.int64)
        place[self._seen] = np.arange(len(self._seen))
        rows = place[old]
        change = NOISE / self._count[old] - NOISE / before[old]
        columns = self._inverse[:, rows]
        middle = np.linalg.inv(np.diag(1 / change) + columns[rows])
        self._inverse = self._inverse - columns @ middle @ columns.T

    def _kernel(self, a: Int, b: Int) -> Float:
        return np.exp(-0.5 * squared_distances(self._x[a], self._x[b]) / self._bandwidth**2)

    def state_dict(self) -> State:
        return {"count": self._count.copy(), "sum": self._sum.copy()}

    def load_state_dict(self, state: State) -> None:
        if state["count"].shape != self._count.shape:
            raise ValueError(
                f"prior gp: the state is of {len(state['count'])} prompts, the data set has "
                f"{len(self._count)}"
            )
        self._count, self._sum = np.array(state["count"]), np.array(state["sum"])
        self._seen, self._inverse = np.zeros(0, dtype=np.int64), np.zeros((0, 0))
        self._extend(np.flatnonzero(self._count > 0))


def squared_distances(a: Float, b: Float) -> Float:
    """(n, d), (m, d) -> (n, m)."""
    product = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2 * a @ b.T
    return np.maximum(product, 0.0)


def median_distance(x: Float, seed: int) -> float:
    """Median distance of pairs among at most 1,000 prompts. ValueError when it is zero: no kernel has that
    width."""
    rows = np.random.default_rng(seed).permutation(len(x))[:MEDIAN_SAMPLE]
    distances = np.sqrt(squared_distances(x[rows], x[rows])[np.triu_indices(len(rows), k=1)])
    median = float(np.median(distances)) if distances.size else 0.0
    if not median > 0:
        raise ValueError(
            "prior gp: the median distance of the features is zero or not a number; check the features"
        )
    return median
