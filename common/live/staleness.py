"""How far generation may run ahead of training. Pure; producer and learner share this implementation.

Version v means v optimizer steps are in the published weights. With the bound s = `max_staleness`:

    batch b may start when b <= v + s                           (the producer's half)
    step v takes every group of batches <= v - s, then groups
    in order of completion, Γ groups in total                   (the learner's half)

The lag of a group in step v is v - b; the second line keeps it at most s. Before step v the run has pushed at
most the batches up to v + s and consumed v·Γ groups, so at most Γ groups of batches <= v - s are open, and
none is dropped. With s = 0 step v is batch v: the paper's synchronous algorithm."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """A complete group in the queue: stream entry, group and batch. Lists are in order of completion."""

    id: str
    group: str
    batch: int


def may_start(batch: int, version: int, max_staleness: int) -> bool:
    """Whether generation of `batch` may begin while `version` is the newest published."""
    return batch <= version + max_staleness


def select_for_step(
    step: int, ready: Sequence[Entry], prompts_per_batch: int, max_staleness: int, overdue_trained: int
) -> list[Entry] | None:
    """The Γ groups of step `step`, or None if it cannot be determined yet.

    `overdue_trained` counts groups of batches <= step - max_staleness in earlier steps. The step waits until
    all remaining groups of those batches are complete."""
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
