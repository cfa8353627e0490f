"""Schedule of evaluations during training: pure functions of versions and steps.

An evaluation is due at every multiple of `evaluation.every` and starts once the weights after that step are
published. Each one is finished before the next starts.
"""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Next:
    """The next step to evaluate, None if none is due, and the skipped older steps."""

    step: int | None
    left_out: tuple[int, ...]


def next_evaluation(
    every: int, steps: int, version: int, done: Collection[int], begun: Collection[int]
) -> Next:
    """`version`: newest published. `done`: steps with a result. `begun`: steps with samples but no result.

    The last step is excluded: it is evaluated after training. Also excluded: step 0 after training starts,
    and steps before the last finished evaluation.
    """
    newest = max((s for s in done if s <= version), default=-1)
    due = [s for s in range(0, min(version, steps - 1) + 1, every) if s > newest]
    under_way = [s for s in due if s in begun]
    if not under_way and due == [0] and version > 0:
        return Next(None, (0,))
    if not due:
        return Next(None, ())
    step = max(under_way) if under_way else due[-1]
    return Next(step, tuple(s for s in due if s < step))


def is_late(every: int, step: int, version: int) -> bool:
    """Whether the next evaluation is due during that of `step`."""
    return version >= step + every
