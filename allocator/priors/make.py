"""Priors by name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from allocator.priors.base import Prior
from allocator.priors.fixed import FixedPrior


def make_prior(
    name: str,
    n: int,
    alpha: float = 1.0,
    beta: float = 1.0,
    features: np.ndarray | None = None,
    state: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
) -> Prior:
    """The prior `name` for a data set of `n` prompts. ValueError for a name that is none."""
    if name != "fixed":
        raise ValueError(f"prior: {name!r} is none of fixed")
    return FixedPrior(alpha, beta)
