"""Priors by name."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hora_rl.allocator.priors.base import FixedPrior, LearnedPrior, Prior, State
from hora_rl.allocator.priors.empirical import EmpiricalPrior
from hora_rl.allocator.priors.gp import GaussianProcessPrior, PooledGaussianProcessPrior

# name: (two heads, learns during training)
PROBES = {
    "hidden-static": (False, False),
    "hidden-online": (False, True),
    "hidden-dual": (True, True),
    "mpnet-dual": (True, True),
}
UNCONDITIONED = ("fixed", "empirical")
"""Priors without features: all prompts have the same one."""
PROCESSES = {process.name: process for process in (GaussianProcessPrior, PooledGaussianProcessPrior)}
NAMES = (*UNCONDITIONED, *PROBES, *PROCESSES)


def make_prior(
    name: str,
    n: int,
    alpha: float = 1.0,
    beta: float = 1.0,
    features: NDArray | None = None,
    state: State | None = None,
    seed: int = 0,
) -> Prior:
    """The prior `name` for a data set of n prompts.

    alpha, beta: parameters of the fixed prior, and of the empirical one before its first cycle. features:
    (n, d), one row per prompt, for learned priors (see `features`). state: arrays of an earlier
    `state_dict()`. Raises ValueError for an unknown name, and for features that are missing, not finite or of
    another number of prompts.
    """
    if name not in NAMES:
        raise ValueError(f"prior: {name!r} is none of {', '.join(NAMES)}")
    if name == "fixed":
        return FixedPrior(alpha, beta)
    prior = _learned(name, n, alpha, beta, features, seed)
    if state is not None:
        prior.load_state_dict(state)
    return prior


def _learned(
    name: str, n: int, alpha: float, beta: float, features: NDArray | None, seed: int
) -> LearnedPrior:
    if name == "empirical":
        return EmpiricalPrior(alpha, beta)
    checked = _features(name, n, features)
    return PROCESSES[name](checked, seed) if name in PROCESSES else _probe(name, checked, seed)


def _probe(name: str, features: NDArray, seed: int) -> LearnedPrior:
    # Imports torch; the rest of the allocator needs only numpy.
    from hora_rl.allocator.priors.probe import ProbePrior

    return ProbePrior(name, features, *PROBES[name], seed)


def _features(name: str, n: int, features: NDArray | None) -> NDArray:
    if features is None:
        raise ValueError(
            f"prior {name}: needs features, one row per prompt: hora_rl.allocator.priors.features"
        )
    if features.ndim != 2 or len(features) != n:
        raise ValueError(f"prior {name}: features must have shape ({n}, d), not {features.shape}")
    bad = np.flatnonzero(~np.isfinite(features).all(axis=1))
    if bad.size:
        raise ValueError(f"prior {name}: features of prompt {bad[0]} are not finite")
    return features
