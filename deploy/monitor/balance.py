"""Which side of a run idles, by how much, and which split of its cards would balance it. Pure.

A step of P seconds keeps the learner busy for P minus its wait, and the generators for the part of P in which
they have requests. Each side's work is taken to divide evenly over its cards (on CPU: its threads), so with n
of them it takes work / n, and the slower side takes the step.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hora_rl.common.config import Generator, Learner

LEAST_STEPS, LEAST_S = 2, 10.0
"""Nothing is said from fewer steps, or from less time: generators are looked at once a second."""
WINDOW = 16
"""The newest steps that count."""
KEPT = 2 * WINDOW
"""Steps that suffice for `balance`: it decides as it would have at each of them."""
IDLES, BUSY = 0.25, 0.15
"""A side idles from this share of its time on, and then until the share falls below the second."""
GAIN = 0.1
"""A split is worth a word where it shortens a step by this share."""

Metrics = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Split:
    """What generators and learner share out: their keys, the keys' values, and what one of a value takes."""

    keys: tuple[str, str]
    values: tuple[int, int]
    each: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Balance:
    """The side that idles, `learner` or `generators`, and both shares of time without work; the generators'
    is None where it is not known. `step` are seconds. `split` would balance the run: a step would take
    `factor` of its time. None where nothing can be moved, or no move helps."""

    side: str
    learner: float
    generators: float | None
    step: float
    split: Split | None = None
    factor: float = 1.0

    @property
    def says(self) -> str:
        """`learner waits 40% of its time (4.0 of 10.0 s)`."""
        if self.side == "learner":
            seconds = f"{self.learner * self.step:.1f} of {self.step:.1f} s a step"
            return f"learner waits {self.learner:.0%} of its time ({seconds})"
        return f"generators idle {self.generators or 0.0:.0%} of their time"

    @property
    def remedy(self) -> str:
        """`generator.replicas 3 and learner.workers 5 would balance them …`; empty without a split."""
        if self.split is None:
            return ""
        pairs = zip(self.split.keys, self.split.values, strict=True)
        return (
            f"{' and '.join(f'{key} {value}' for key, value in pairs)} would balance them, with steps of "
            f"about {self.factor * self.step:.1f} s"
        )


def split_of(generator: Generator, learner: Learner, device: str) -> Split | None:
    """What the two sides of a run on the learner's `device` (a GPU's name, `cpu`, or empty where it is not
    known) share out; None where they share one card."""
    if device == "cpu":
        values = (generator.threads, learner.threads)
        return Split(("generator.threads", "learner.threads"), values, (generator.replicas, learner.workers))
    if not device or min(generator.gpus or 1.0, learner.gpus or 1.0) < 1.0:
        return None
    values, each = (generator.replicas, learner.workers), (generator.tensor_parallel, 1)
    return Split(("generator.replicas", "learner.workers"), values, each)


def balance(steps: Sequence[Metrics], total: int, staleness: int, split: Split | None) -> Balance | None:
    """What the records of the newest of `total` steps say, oldest first; None while neither side idles, and
    where they take turns (`rollout.max_staleness` 0).

    The first step of a run waits for its start, and in its last ones nothing is left to generate: they do not
    count.
    """
    if staleness == 0:
        return None
    end = total - staleness - 1
    counted = [s for s in steps if 0 < (s.get("step") or 0) < end and s.get("time/step")]
    found: Balance | None = None
    for n in range(LEAST_STEPS, len(counted) + 1):
        found = _of(counted[max(0, n - WINDOW) : n], found)
    return found and _with_split(found, split)


def _of(steps: Sequence[Metrics], before: Balance | None) -> Balance | None:
    """Of these steps, where `before` was found up to the one before."""
    seconds = [s["time/step"] or 0.0 for s in steps]
    if sum(seconds) < LEAST_S:
        return None
    # The median: one step that waits for an operator or an evaluation is no habit.
    learner = statistics.median((s.get("time/wait") or 0.0) / t for s, t in zip(steps, seconds, strict=True))
    idle = [(s.get("generators/idle"), t) for s, t in zip(steps, seconds, strict=True)]
    known = [(share, t) for share, t in idle if share is not None]
    generators = sum(share * t for share, t in known) / sum(t for _, t in known) if known else None
    shares = {"learner": learner, "generators": generators or 0.0}
    side = max(shares, key=lambda name: shares[name])
    if shares[side] < (BUSY if before and before.side == side else IDLES):
        return None
    return Balance(side, learner, generators, statistics.median(seconds))


def _with_split(found: Balance, now: Split | None) -> Balance:
    if now is None or found.generators is None or min(found.learner, found.generators) >= IDLES:
        return found  # where both wait, something else is slow
    total = sum(value * each for value, each in zip(now.values, now.each, strict=True))
    work = (
        now.values[0] * now.each[0] * (1.0 - found.generators),
        now.values[1] * now.each[1] * (1.0 - found.learner),
    )

    def took(values: tuple[int, int]) -> float:
        return max(w / (v * each) for w, v, each in zip(work, values, now.each, strict=True))

    counts = range(1, (total - now.each[1]) // now.each[0] + 1)
    best = min(((n, (total - n * now.each[0]) // now.each[1]) for n in counts), key=took, default=now.values)
    factor = took(best) / took(now.values)
    if factor > 1.0 - GAIN:
        return found
    return replace(found, split=replace(now, values=best), factor=factor)
