"""The Gaussian process of `gp` with noisy observations, so that every cycle counts.

A cycle observes logit(c/G0) with noise of variance `NOISE`; rates 0 and 1 are moved inside by half a rollout.

Recursive updates with fixed noise equal conditioning on all observations at once, and repeated observations
of one prompt equal their mean with less noise. So the state is two numbers per prompt. The inverse covariance
of the m observed prompts grows by blocks, in O(m²) per cycle.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hora_rl.allocator.posterior import Float, Int
from hora_rl.allocator.priors.base import State
from hora_rl.allocator.priors.gp import PRIOR_MEAN, GaussianProcess

NOISE = 1.0


class PooledGaussianProcessPrior(GaussianProcess):
    """`features`: (n_prompts, d), one row per prompt. Memory: 8 m² bytes for m observed prompts."""

    name = "gp-pooled"

    def __init__(self, features: NDArray, seed: int = 0) -> None:
        super().__init__(features, seed)
        self._count = np.zeros(len(self._x))
        self._sum = np.zeros(len(self._x))
        self._seen = np.zeros(0, dtype=np.int64)
        self._inverse = np.zeros((0, 0))

    def mean(self, prompts: Int) -> Float:
        if not len(self._seen):
            return np.full(len(prompts), PRIOR_MEAN)
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
        """Lower the noise of prompts seen again: a low-rank update of the diagonal (Woodbury)."""
        if not len(old):
            return
        place = np.empty(len(self._x), dtype=np.int64)
        place[self._seen] = np.arange(len(self._seen))
        rows = place[old]
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
