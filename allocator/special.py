"""log Γ and sigmoid on numpy arrays, so that the allocator needs only numpy.

log Γ shifts its argument up by eight and uses Stirling's series. The first neglected term is below 1e-15.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

SHIFT = 8
HALF_LOG_2PI = 0.5 * np.log(2 * np.pi)


def log_gamma(x: Float) -> Float:
    """log Γ(x) for x > 0, any shape."""
    z = x + SHIFT
    product = x * (x + 1) * (x + 2) * (x + 3)
    rest = (x + 4) * (x + 5) * (x + 6) * (x + 7)
    inverse = 1 / z
    square = inverse * inverse
    series = inverse * (
        1 / 12
        - square
        * (1 / 360 - square * (1 / 1260 - square * (1 / 1680 - square * (1 / 1188 - square * 691 / 360360))))
    )
    # Two logarithms: the product of eight factors leaves float64's range from about 1e38 on.
    return (z - 0.5) * np.log(z) - z + HALF_LOG_2PI + series - np.log(product) - np.log(rest)


def sigmoid(x: Float) -> Float:
    """1 / (1 + exp(-x)), any shape, without overflow."""
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))
