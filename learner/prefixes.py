"""Completions of one prompt in one row, so that the prompt is computed once for all of them.

A row of tokens is [prompt, c_1, …, c_m]: every completion has positions from the prompt's end on, and a mask
lets a token see the prompt and its own completion alone. One call of the model computes the row, so its hooks
run as for any other input. A row with one completion needs no mask.

Kernels that take a mask compute all T² products of a row, also those that it forbids. So the completions of a
long group are cut into several rows, each with the prompt again; and groups lie in rows one above the other
and not end to end in one, where each would pay for all the others. With S tokens of completions in k rows, C
per token and A per product of attention, the cost is

    C (kP + S) + A (kP + S)² / k,    least at k = S / sqrt(P² + P C/A)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hora_rl.learner.packing import spread
from hora_rl.learner.sample import Sample

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

SAVING = 0.1
"""Prompts are shared where that saves this part of the cost: less is lost to the mask and to rows cut
otherwise."""
WINDOWS = ("sliding_window", "attention_chunk_size", "window_size", "local_attention")
ALIGNED = 8

Row = Sequence[Sample]
"""Samples of one prompt, which are computed together."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """`even`: C/A, the row length T at which attention costs as much as all else. `window`: longest sequence
    whose every token sees all before it; None: any."""

    even: float
    window: int | None = None


def length(row: Row) -> int:
    """Tokens that are computed for `row`."""
    return len(row[0].prompt) + sum(len(s.tokens) for s in row)


def rows_of(samples: Sequence[Sample], budget: int, sharing: Sharing | None) -> list[Row]:
    """`samples` in rows of at most `budget` tokens, as far as single samples allow it. Without `sharing` each
    is alone. Deterministic."""
    if sharing is None:
        return [[s] for s in samples]
    groups: dict[bytes, list[Sample]] = {}
    rows: list[Row] = []
    for sample in samples:
        if sharing.window is None or sample.length <= sharing.window:
            groups.setdefault(sample.prompt.tobytes(), []).append(sample)
        else:
            rows.append([sample])
    for group in groups.values():
        prompt, completions = len(group[0].prompt), [len(s.tokens) for s in group]
        rows += [[group[i] for i in row] for row in divide(prompt, completions, budget, sharing.even)]
    return rows


def divide(prompt: int, completions: Sequence[int], budget: int, even: float) -> list[list[int]]:
    """Indices of `completions`, lengths after one prompt, in rows of about equal length and least cost; each
    alone where sharing saves too little."""
    alone = [[i] for i in range(len(completions))]
    total = sum(completions)
    count = max(1, round(total / math.sqrt(prompt * (prompt + even))))
    while count < len(completions):
        rows = spread(completions, count)
        widths = [prompt + sum(completions[i] for i in row) for row in rows]
        if max(widths) <= budget:
            shared = sum(w * (even + w) for w in widths)
            single = sum((prompt + n) * (even + (prompt + n) / 2) for n in completions)
            return rows if shared <= (1.0 - SAVING) * single else alone
        count += 1
    return alone


def mask_of(segments: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is added to the scores of attention (B, 1, T, T): 0 where a token may look, else the least number.
    `segments` (B, T) are 0 for the prompt and number the completions and the padding of a row.

    Added numbers suit every implementation: `eager` adds it, and SDPA would make them of a boolean mask in
    each layer anew. Lines begin at multiples of 8 numbers, which CUDA's memory-efficient kernel asks for:
    otherwise it copies the mask in each layer. (Flash attention takes no mask.)
    """
    import torch

    batch, width = segments.shape
    own = (segments[:, None, :] == 0) | (segments[:, None, :] == segments[:, :, None])
    stride = -(-width // ALIGNED) * ALIGNED
    mask = torch.full((batch, 1, width, stride), torch.finfo(dtype).min, dtype=dtype, device=segments.device)[
        ..., :width
    ]
    return mask.masked_fill_(own.tril()[:, None], 0.0)


def window_of(config: PreTrainedConfig) -> int | None:
    """The least number of tokens that some layer looks back; None where all look back to the start."""
    text = config.get_text_config()
    found = [getattr(text, name, None) for name in WINDOWS]
    return min((n for n in found if isinstance(n, int)), default=None)
