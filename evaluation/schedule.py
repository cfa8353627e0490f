"""Which evaluation during training comes next. Pure: versions and steps in, a decision out.

An evaluation is due at every multiple of `evaluation.every`, and begins when the weights after that step are
published. One that has begun is finished, however long it takes, before another begins.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Next:
    """The step whose evaluation comes next, None while none is due, and the steps that will have none:
    newer ones became due before they could begin."""

    step: int | None
    left_out: tuple[int, ...]


def next_evaluation(
    every: int, steps: int, version: int, done: Collection[int], begun: Collection[int]
) -> Next:
    """`version` is the newest published, `done` steps have their result, `begun` ones samples without one.

    The last of `steps` is not among them: its evaluation follows training, on weights that stay. Nor is the
    initial policy once it is trained: what it is compared with must be itself.
    """
    due = [s for s in range(0, min(version, steps - 1) + 1, every) if s not in done]
    under_way = [s for s in due if s in begun]
    if not under_way and due == [0] and version > 0:
        return Next(None, (0,))
    if not due:
        return Next(None, ())
    step = max(under_way) if under_way else due[-1]
    return Next(step, tuple(s for s in due if s < step))


def upcoming(every: int, steps: int, version: int) -> int | None:
    """The step whose evaluation becomes due after `version`; None where training ends before."""
    step = (version // every + 1) * every
    return step if step < steps else None


def is_late(every: int, step: int, version: int) -> bool:
    """Whether the next evaluation is due while that of `step` is under way."""
    return version >= step + every
