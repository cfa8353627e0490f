"""The likelihood of a right answer: log p of every prompt, from hits alone (docs/explanation/learner.md)."""

import numpy as np
from numpy.typing import ArrayLike

from hora_rl.common.algorithms.base import Algorithm, Values


def advantage(successes: ArrayLike, baseline: float = 0.0) -> Values:
    """n/c for each of c hits, minus n·`baseline` for every rollout: Σ_j A_j/n · score_j is the mean score of
    the hits.

    Its expectation is P(c >= 1) ∇log p for any n chosen from counts only. A constant baseline keeps it if n
    is a stopping time (Wald), so `baseline` is 1/G for all groups, not 1/n."""
    hits = np.asarray(successes, dtype=np.float64)
    return len(hits) * (hits / max(1.0, hits.sum()) - baseline)


ALGORITHM = Algorithm(advantage=advantage, counts=True, has_baseline=True, per_group=True)
