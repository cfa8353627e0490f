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
    known = np.isfinite(values)
    sums = np.concatenate(([0.0], np.cumsum(np.where(known, values, 0.0))))
    counts = np.concatenate(([0], np.cumsum(known)))
    at = np.arange(len(values))
    low = np.clip(at - window // 2, 0, None)
    high = np.clip(at + (window - 1) // 2 + 1, None, len(values))
    n = counts[high] - counts[low]
    return np.divide(sums[high] - sums[low], n, out=np.full(len(values), np.nan), where=n > 0)
