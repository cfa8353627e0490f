"""Cut completions of unequal length into micro-batches of a token budget. Pure and deterministic.

`pack` puts completions end to end: nothing is padding, but attention must know where each begins (flash
attention does, at no cost). `rows` puts near-equal lengths side by side, padded at the right: causal
attention never looks there, and its cost stays that of single completions where a dense mask over a long pack
would square it.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.errors import ConfigError

REAL = 0.95


def rows(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices of `lengths` in bins, longest first; ties by index. In a bin count times longest is at most
    `budget` and at least 95% of that is real tokens. Raises ConfigError for a length above the budget."""
    _check(lengths, budget)
    bins: list[list[int]] = []
    longest = tokens = 0
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        area = (len(bins[-1]) + 1) * longest if bins else 0
        if not bins or area > budget or tokens + lengths[i] < REAL * area:
            bins.append([])
            longest, tokens = lengths[i], 0
        bins[-1].append(i)
        tokens += lengths[i]
    return bins


def pack(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices of `lengths` in bins of at most `budget` tokens: first-fit decreasing, ties by index.

    Completions are packed end to end in a bin, so nothing is padding but what a bin leaves free, and that is
    not computed. Raises ConfigError for a completion that no bin can hold.
    """
    _check(lengths, budget)
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
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


def _check(lengths: Sequence[int], budget: int) -> None:
    if lengths and max(lengths) > budget:
        raise ConfigError(
            f"a prompt with its completion has {max(lengths)} tokens, learner.tokens_per_microbatch is "
            f"{budget}: raise it"
        )
