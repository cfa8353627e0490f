"""Drift: the mean |difference| of generator and learner log-probs of the same tokens under the same weights.
A wrong engine or model causes a large drift at once and stops the run in its first steps. Later drift only
raises an alarm."""

from hora_rl.common.errors import RunError

FIRST = 5  # measurements after each start of the learner
ENOUGH = 200
"""Tokens per measurement. Single tokens differ with a long tail, above all in 16 bits: a mean of twenty is
noise."""


class Drift:
    """Accumulates tokens over steps until `ENOUGH` make a measurement, then starts again. `limit` is
    `weights.drift_limit`, applied to the first measurements."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._left = FIRST
        self._sum = self._tokens = 0.0

    def add(self, step: int, sums: dict[str, float]) -> dict[str, float]:
        """Return `sums` of step `step` over all ranks, with the drift of a measurement that ends at this
        step, else with zeros. The same on every rank. Raises RunError if one of the first measurements
        exceeds the limit."""
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
