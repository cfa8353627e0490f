"""The run stops when its first steps show that generators do not sample from the policy that is trained."""

from __future__ import annotations

from collections.abc import Mapping

from common.errors import RunError

FIRST = 5  # measured steps after each start of the learner


class DriftLimit:
    """`weights.drift_limit`, applied to the first measured steps.

    Drift is the mean |difference| of the log-probs that generators and learner give to the same tokens on the
    same weights. A wrong engine or model shows it at once; later drift is an alarm, for a run must not end by
    one bad step.
    """

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._left = FIRST

    def check(self, step: int, sums: Mapping[str, float]) -> None:
        """Raise RunError when `sums` of this step, over all ranks, are above the limit. The same on every
        rank."""
        tokens = sums.get("drift_tokens", 0.0)
        if self._limit is None or self._left == 0 or tokens == 0.0:
            return
        self._left -= 1
        drift = sums["drift"] / tokens
        if drift > self._limit:
            raise RunError(
                f"step {step}: on the same weights the log-probs of generators and learner differ by "
                f"{drift:.3g} in the mean, and weights.drift_limit is {self._limit:g}: what is sampled is "
                "not from the policy that is trained. Make both alike (model.path, model.dtype, "
                "learner.attention, the engine's options), or raise weights.drift_limit"
            )
