"""The best weights of prompts' noisy gradients, written with their numbers: `shrunken(10)` or `shrunken(10,
0.75)`. r is the variance of one hit's score over |∇log p|², ρ the overlap of two prompts' ∇log p
(`allocator/rules/hits.py`)."""

import re
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from hora_rl.common.algorithms.base import Algorithm, Values


def advantage(successes: ArrayLike, noise: float, overlap: float = 0.0) -> Values:
    """n/((1 - ρ)c + r) for each of c hits, zero for a miss.

    r = ρ = 0 is `likelihood`; for large r all hits weigh alike, as in a plain policy gradient. A constant
    factor over the batch is left out, as the optimiser's rate has it."""
    hits = np.asarray(successes, dtype=np.float64)
    c = hits.sum()
    return len(hits) * hits / ((1 - overlap) * c + noise) if c else hits


ALGORITHM = Algorithm(advantage=advantage, counts=True, per_group=True)


def with_numbers(numbers: str) -> Algorithm:
    """The algorithm with "r" or "r, ρ". Raises ValueError for other numbers."""
    match = re.fullmatch(r"([^,]+)(?:,([^,]+))?", numbers)
    try:
        r, overlap = (float(number or 0) for number in match.groups()) if match else (np.nan, 0.0)
    except ValueError:
        r, overlap = np.nan, 0.0
    if not (0 <= r < np.inf and 0 <= overlap < 1):
        raise ValueError(
            "needs a hit's noise r from 0, and may have an overlap ρ from 0 to below 1: shrunken(10) or "
            "shrunken(10, 0.75)"
        )
    return replace(ALGORITHM, advantage=partial(advantage, noise=r, overlap=overlap))
