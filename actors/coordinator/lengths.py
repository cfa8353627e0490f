"""How long completions are, by the Phase A rollouts of the last cycles: what a budget in tokens is worked out from.

Phase A samples every prompt alike, so its mean is that of uniform sampling, whatever the rule prefers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from allocator.lengths import Lengths, expected_lengths
from common.errors import RunError

WINDOW = 10
"""Cycles that count: lengths change while a model learns."""


class RunningLengths:
    """Lengths of the last `WINDOW` cycles, each of whose prompts has `trials` pre-rollouts."""

    def __init__(self, trials: int) -> None:
        self._trials = trials
        self._cycles: deque[list[tuple[int, int]]] = deque(maxlen=WINDOW)

    @property
    def now(self) -> Lengths | None:
        """By the cycles observed so far; None before the first."""
        counts = [pair for cycle in self._cycles for pair in cycle]
        if not counts:
            return None
        successes, tokens = zip(*counts, strict=True)
        return expected_lengths(successes, tokens, self._trials)

    def observe(self, reports: Sequence[Mapping[str, Any]]) -> None:
        """Take note of one cycle. Raises RunError where a report does not say its lengths."""
        self._cycles.append([pair for report in reports for pair in _counts(report)])


def _counts(report: Mapping[str, Any]) -> list[tuple[int, int]]:
    """(successes, tokens) of each prompt of a shard in Phase A."""
    tokens = report["rounds"][0]["tokens"] if report.get("rounds") else []
    if len(tokens) != len(report["successes"]):
        raise RunError(
            f"allocation.budget: tokens goes by lengths, and the report of shard {report['batch']}:{report['shard']} has none: "
            "end this run with the version that began it, or use allocation.budget: rollouts"
        )
    return list(zip(report["successes"], tokens, strict=True))
