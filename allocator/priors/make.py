"""Priors by name. `fixed(2, 5)` is Beta(2, 5) for all prompts, `fixed` Beta(1, 1); `empirical(2, 5)` begins
with Beta(2, 5)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hora_rl.allocator.priors.base import FixedPrior, LearnedPrior, Prior, State
from hora_rl.allocator.priors.empirical import EmpiricalPrior
from hora_rl.allocator.priors.gp import GaussianProcessPrior

# name: (two heads, learns during training)
PROBES = {
    "hidden-static": (False, False),
    "hidden-online": (False, True),
    "hidden-dual": (True, True),
    "mpnet-dual": (True, True),
}
UNCONDITIONED = ("fixed", "empirical")
"""Priors without features: all prompts have the same one."""
NAMES = (*UNCONDITIONED, *PROBES, GaussianProcessPrior.name)


def make_prior(
    name: str,
    n: int,
    features: NDArray | None = None,
    state: State | None = None,
    seed: int = 0,
) -> Prior:
    """The prior `name` for a data set of n prompts.

    features: (n, d), one row per prompt, for learned priors (see `features`). state: arrays of an earlier
    `state_dict()`. Raises ValueError for an unknown name, and for features that are missing, not finite or of
    another number of prompts.
    """
    kind, (alpha, beta) = kind_of(name), beta_of(name)
    if kind == "fixed":
        return FixedPrior(alpha, beta)
    prior = EmpiricalPrior(alpha, beta) if kind == "empirical" else _conditioned(name, n, features, seed)
    if state is not None:
        prior.load_state_dict(state)
    return prior


def kind_of(name: str) -> str:
    """The name without its numbers. Raises ValueError for an unknown one."""
    kind, parenthesis, _ = name.partition("(")
    if kind not in NAMES or (parenthesis and kind not in UNCONDITIONED):
        raise ValueError(f"prior: {name!r} is none of {', '.join(NAMES)}")
    return kind


def beta_of(name: str) -> tuple[float, float]:
    """(α0, β0) in the parentheses of `name`; (1, 1) without them. Raises ValueError."""
    _, parenthesis, numbers = name.partition("(")
    if not parenthesis:
        return 1.0, 1.0
    try:
        alpha, beta = map(float, numbers.removesuffix(")").split(","))
    except ValueError:
        raise ValueError(f"prior: {name!r}: give two numbers, as in fixed(2, 5)") from None
    if not (0 < alpha < math.inf and 0 < beta < math.inf):
        raise ValueError(f"prior: {name!r}: both numbers must be positive")
    return alpha, beta


def _conditioned(name: str, n: int, features: NDArray | None, seed: int) -> LearnedPrior:
    checked = _features(name, n, features)
    if name == GaussianProcessPrior.name:
        return GaussianProcessPrior(checked, seed)
    # Imports torch; the rest of the allocator needs only numpy.
    from hora_rl.allocator.priors.probe import ProbePrior

    return ProbePrior(name, checked, *PROBES[name], seed)


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
