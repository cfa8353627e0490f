"""Drift: the mean |difference| of the log-probs that generators and learner give to the same tokens on the
same weights. A wrong engine or model shows it at once, and stops the run in its first steps; later drift is
an alarm, for a run must not end by one bad step."""

from __future__ import annotations

from hora_rl.common.errors import RunError

FIRST = 5  # measurements after each start of the learner
ENOUGH = 200
"""Tokens of a measurement. Differences of single tokens have a long tail, in 16 bits above all: the mean of
twenty says little."""


class Drift:
    """Tokens of one step after the other, until they are `ENOUGH` for a measurement, which starts anew then.
    `limit` is `weights.drift_limit`, applied to the first measurements."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._left = FIRST
        self._sum = self._tokens = 0.0

    def add(self, step: int, sums: dict[str, float]) -> dict[str, float]:
        """`sums` of step `step` over all ranks, with the drift of the measurement that ends with it, or with
        none. The same on every rank. Raises RunError for one of the first above the limit."""
        self._sum += sums.get("drift", 0.0)
        self._tokens += sums.get("drift_tokens", 0.0)
        if self._tokens < ENOUGH:
            return sums | {"drift": 0.0, "drift_tokens": 0.0}
        measured = {"drift": self._sum, "drift_tokens": self._tokens}
        drift, tokens = self._sum / self._tokens, self._tokens
        self._sum = self._tokens = 0.0
        self._left -= 1
        if self._limit is not None and self._left >= 0 and drift > self._limit:
            raise RunError(
                f"step {step}: on the same weights the log-probs of generators and learner differ by "
                f"{drift:.3g} in the mean over {tokens:.0f} tokens, and weights.drift_limit is "
                f"{self._limit:g}: what is sampled is not from the policy that is trained. Make both alike "
                "(model.path, model.dtype, learner.attention, the engine's options), or raise "
                "weights.drift_limit"
            )
        return sums | measured
