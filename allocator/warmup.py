"""The warm-up gate: plain GRPO until the format is learned, then HORA (paper, appendix on configurations)."""

from __future__ import annotations

import math

ROUNDING = 1e-9  # far below the effect of one rollout on a mean


class WarmUpGate:
    """Opens for good after `cycles` consecutive cycles with a mean reward of at least `threshold`.

    The paper uses the format reward. With `enabled` false the gate is open from the start.
    """

    def __init__(self, threshold: float = 0.85, cycles: int = 3, enabled: bool = True) -> None:
        self._threshold = threshold
        self._cycles = cycles
        self._run = 0
        self._open = not enabled

    @property
    def open(self) -> bool:
        """True: allocate with HORA. False: allocate uniformly."""
        return self._open

    def observe(self, mean: float) -> None:
        """Record one generation cycle's mean reward. Raises ValueError if it is not finite."""
        if not math.isfinite(mean):
            raise ValueError(f"mean must be finite, not {mean}")
        self._run = self._run + 1 if mean >= self._threshold - ROUNDING else 0
        self._open = self._open or self._run >= self._cycles
