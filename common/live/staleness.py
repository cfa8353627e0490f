"""How far generation may run ahead of training. Pure, and one implementation for both sides.

Version v means v optimizer steps are in the published weights. With the bound s = `max_staleness`:

    batch b may start when b <= v + s                           (the producer's half)
    step v takes every group of batches <= v - s, then others
    in order of completion, Γ groups in all                     (the learner's half)

Lag of a group in step v is v - b; the second line keeps it at most s. Before step v the run has pushed at
most the batches up to v + s and consumed v·Γ groups, so the groups of batches <= v - s that are still open
are at most Γ, and nothing needs to be dropped. With s = 0 step v is batch v: the paper's synchronous
algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ready:
    """A complete group that no step has taken. The order of a list of these is the order of completion."""

    entry: str
    group: str
    batch: int


def may_start(batch: int, version: int, max_staleness: int) -> bool:
    """Whether generation of `batch` may begin while `version` is the newest published."""
    return batch <= version + max_staleness


def select_for_step(
    step: int, ready: Sequence[Ready], prompts_per_batch: int, max_staleness: int, overdue_trained: int
) -> list[Ready] | None:
    """The Γ groups of step `step`, or None while they cannot be told yet.

    `overdue_trained` counts groups of batches <= step - max_staleness that earlier steps took: the step waits
    until all others of those batches are there.
    """
    limit = step - max_staleness
    overdue = [r for r in ready if r.batch <= limit]
    missing = max(0, limit + 1) * prompts_per_batch - overdue_trained - len(overdue)
    if missing > 0 or len(ready) < prompts_per_batch:
        return None
    if len(overdue) > prompts_per_batch:
        raise AssertionError(
            f"step {step}: {len(overdue)} groups of batches <= {limit} are untrained, more than Γ = "
            f"{prompts_per_batch}"
        )
    newer = [r for r in ready if r.batch > limit]
    return overdue + newer[: prompts_per_batch - len(overdue)]
