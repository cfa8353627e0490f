"""The warm-up gate: plain GRPO until the format is learned, then HORA for good (paper, appendix on configurations)."""

from __future__ import annotations

ROUNDING = 1e-9  # one rollout more or less changes a mean by far more


class WarmUpGate:
    """Opens after `cycles` consecutive generation cycles whose mean format reward is at least `threshold`.

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

    def observe(self, mean_format: float) -> None:
        """Take note of one generation cycle. ValueError for a mean that is not in 0..1, NaN included."""
        if not 0 <= mean_format <= 1:
            raise ValueError(f"mean_format must be in 0..1, not {mean_format}")
        self._run = self._run + 1 if mean_format >= self._threshold - ROUNDING else 0
        self._open = self._open or self._run >= self._cycles
