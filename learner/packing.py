"""Cuts rows of unequal length into micro-batches of a token budget, and spreads costs evenly. Pure and
deterministic.

Rows of similar length share a micro-batch, padded at the right. Causal attention never looks there, and costs
as much as for separate rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from hora_rl.common.errors import ConfigError

REAL = 0.95


def bins(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices of `lengths` in bins, longest first; ties by index. In each bin, count times longest is at most
    `budget`, and at least 95% of that are real tokens. Raises ConfigError for a length above the budget."""
    if lengths and max(lengths) > budget:
        raise ConfigError(
            f"a prompt with its completion has {max(lengths)} tokens, learner.tokens_per_microbatch is "
            f"{budget}: raise it"
        )
    found: list[list[int]] = []
    longest = tokens = 0
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        area = (len(found[-1]) + 1) * longest if found else 0
        if not found or area > budget or tokens + lengths[i] < REAL * area:
            found.append([])
            longest, tokens = lengths[i], 0
        found[-1].append(i)
        tokens += lengths[i]
    return found


def spread(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Indices of `sizes` in `count` parts of about equal sums: the largest first, each to the smallest part.
    Indices rise within a part."""
    parts: list[list[int]] = [[] for _ in range(count)]
    sums = [0] * count
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        part = sums.index(min(sums))
        parts[part].append(i)
        sums[part] += sizes[i]
    return [sorted(part) for part in parts]
