"""The warm-up gate: plain GRPO until the format is learned, then HORA for good (paper, appendix on
configurations).
"""

from __future__ import annotations

import math

ROUNDING = 1e-9  # one rollout more or less changes a mean by far more


class WarmUpGate:
    """Opens after `cycles` consecutive generation cycles whose mean reward (the format's, in the paper) is at
    least `threshold`.

    It never closes again. With `enabled` false it is open from the start.
    """

    def __init__(self, threshold: float = 0.85, cycles: int = 3, enabled: bool = True) -> None:
        self._threshold = threshold
        self._cycles = cycles
        self._run = 0
        self._open = not enabled

    @property
    def open(self) -> bool:
        """True: HORA is in force. False: allocate uniformly."""
        return self._open

    def observe(self, mean: float) -> None:
        """Record one generation cycle's mean reward. ValueError for one that is not finite."""
        if not math.isfinite(mean):
            raise ValueError(f"mean must be finite, not {mean}")
        self._run = self._run + 1 if mean >= self._threshold - ROUNDING else 0
        self._open = self._open or self._run >= self._cycles
