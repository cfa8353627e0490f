"""The paper's smoother for training curves (appendix, length and entropy)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def smoothed(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """`values` (n,) averaged over max(5, n/30) points, the paper's window."""
    return moving_average(values, max(5, len(values) // 30))


def moving_average(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Centred mean over `window` points of `values` (n,), fewer at the ends, ignoring non-finite values.

    A window of even size looks one further back than ahead.
    """
    known, ahead = np.isfinite(values), (window - 1) // 2
    sums, counts = (
        np.convolve(x, np.ones(window))[ahead:][: len(values)] for x in (np.where(known, values, 0.0), known)
    )
    return np.divide(sums, counts, out=np.full(len(values), np.nan), where=counts > 0)
