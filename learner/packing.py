"""Cut completions of unequal length into micro-batches of a token budget. Pure and deterministic."""

from __future__ import annotations

from collections.abc import Sequence

from common.errors import ConfigError


def pack(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices of `lengths` in bins of at most `budget` tokens: first-fit decreasing, ties by index.

    Completions are packed end to end in a bin, so nothing is padding but what a bin leaves free, and that is not
    computed. Raises ConfigError for a completion that no bin can hold.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    if order and lengths[order[0]] > budget:
        raise ConfigError(
            f"a prompt with its completion has {lengths[order[0]]} tokens, learner.tokens_per_microbatch is {budget}: raise it"
        )
    bins: list[list[int]] = []
    free: list[int] = []
    for i in order:
        place = next((b for b, room in enumerate(free) if room >= lengths[i]), None)
        if place is None:
            bins.append([])
            free.append(budget)
            place = len(bins) - 1
        bins[place].append(i)
        free[place] -= lengths[i]
    return [sorted(b) for b in bins]
