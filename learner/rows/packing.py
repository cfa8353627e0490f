"""Training sequences, packed in rows and micro-batches: completions of one prompt in one row, so the prompt
is computed once for all of them; rows of similar length, padded at the right; costs evenly over parts.
Deterministic.

A row of tokens is [prompt, c_1, …, c_m]. Positions of every completion continue the prompt's, and a mask
limits a token to the prompt and its completion. A row with one completion needs no mask.

Kernels with a mask compute all T² products of a row, masked ones included. So a long group is cut into
several rows, each repeating the prompt. With S tokens of completions in k rows, C per token and A per product
of attention, the cost is

    C (kP + S) + A (kP + S)² / k,    least at k = S / sqrt(P² + P C/A)

FlexAttention (learner/model/cuda_kernels.py) computes what is seen alone, at `SPARSE` of the speed of a
kernel without a mask. There a group is cut only to fit a micro-batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hora_rl.common.errors import ConfigError
from hora_rl.common.types import LogProbs, Rollout, Tokens, Turn

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

SAVING = 0.1
"""Prompts are shared if that saves this share of the cost; mask and row lengths use up smaller savings."""
SPARSE = 0.7
"""Speed of attention under a mask of blocks, relative to causal attention. Not measured."""
WINDOWS = ("sliding_window", "attention_chunk_size", "window_size", "local_attention")
ALIGNED = 8
REAL = 0.95


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A rollout, or one sequence of a rollout of several turns. `tokens` (L,) follow `prompt`. `places` are
    the indices of the N sampled tokens in `tokens`; None: all (N = L). `logprobs` and `match` have (N,): log
    π_gen, and whether the token is of the learner's current version. `scale` is a sampled token's weight in
    the loss; tokens given between turns are not in the loss."""

    prompt: Tokens
    tokens: Tokens
    logprobs: LogProbs
    advantage: float
    scale: float
    match: NDArray[np.bool_]
    places: NDArray[np.int64] | None = None

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.tokens)

    def sources(self, start: int) -> NDArray[np.int64]:
        """Indices in a row (N,) whose hidden states predict the sampled tokens, if `tokens` begin at `start`.
        The first token is predicted at the prompt's end, every other one at the token before."""
        places = np.arange(len(self.tokens)) if self.places is None else self.places
        return np.where(places == 0, len(self.prompt), places + start) - 1

    @property
    def targets(self) -> Tokens:
        """The sampled tokens (N,)."""
        return self.tokens if self.places is None else self.tokens[self.places]


def sequences(
    prompt: Tokens, rollout: Rollout, advantage: float = 0.0, scale: float = 0.0, version: int = 0
) -> Iterator[Sample]:
    """The samples of a rollout, in order: the first after the group's `prompt`, and one per turn with a fresh
    context. `match` are the tokens of `version`."""
    match = np.zeros(len(rollout.tokens), dtype=bool)
    for each in rollout.spans:
        match[each.start : each.end] = each.version == version
    if not rollout.turns:
        yield Sample(prompt, rollout.tokens, rollout.logprobs, advantage, scale, match)
        return
    starts = accumulate((turn.sampled for turn in rollout.turns), initial=0)
    turns = list(zip(starts, rollout.turns, strict=False))
    fresh = [i for i, (_, turn) in enumerate(turns) if i == 0 or turn.anew]
    for begin, end in zip(fresh, [*fresh[1:], len(turns)], strict=True):
        part = turns[begin:end]
        prompt = part[0][1].context if part[0][1].anew else prompt
        span = slice(part[0][0], part[-1][0] + part[-1][1].sampled)
        tokens, places = _joined(rollout, part)
        yield Sample(prompt, tokens, rollout.logprobs[span], advantage, scale, match[span], places)


def _joined(rollout: Rollout, part: list[tuple[int, Turn]]) -> tuple[Tokens, NDArray[np.int64]]:
    """The tokens of consecutive turns (L,), without a fresh context, and indices (N,) of the sampled ones."""
    pieces: list[Tokens] = []
    places: list[NDArray[np.int64]] = []
    length = 0
    for start, turn in part:
        context = turn.context[:0] if turn.anew else turn.context
        pieces += [context, rollout.tokens[start : start + turn.sampled]]
        length += len(context) + turn.sampled
        places.append(np.arange(length - turn.sampled, length))
    return np.concatenate(pieces), np.concatenate(places)


Row = Sequence[Sample]
"""Samples of one prompt, computed together."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """`even`: C/A, the row length T at which attention costs as much as everything else. `window`: the
    longest sequence in which every token sees all earlier ones; None: unlimited. `sparse`: a row costs what
    its tokens see, not its square."""

    even: float
    window: int | None = None
    sparse: bool = False


def length(row: Row) -> int:
    """Number of tokens computed for `row`."""
    return len(row[0].prompt) + sum(len(s.tokens) for s in row)


def rows_of(samples: Sequence[Sample], budget: int, sharing: Sharing | None) -> list[Row]:
    """Pack `samples` in rows of at most `budget` tokens, unless a single sample exceeds that. Without
    `sharing` each sample has its row. Deterministic."""
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
        cut = divide(prompt, completions, budget, sharing.even, sparse=sharing.sparse)
        rows += [[group[i] for i in row] for row in cut]
    return rows


def divide(
    prompt: int, completions: Sequence[int], budget: int, even: float, *, sparse: bool = False
) -> list[list[int]]:
    """Indices of `completions` (lengths, after one prompt) in rows of similar length and least cost; one per
    row if sharing saves too little."""
    alone = [[i] for i in range(len(completions))]
    total = sum(completions)
    fits = total / max(1, budget - prompt)
    fewest = fits if sparse else round(total / math.sqrt(prompt * (prompt + even)))
    count = max(1, math.ceil(fewest))
    while count < len(completions):
        rows = spread(completions, count)
        widths = [prompt + sum(completions[i] for i in row) for row in rows]
        if max(widths) <= budget:
            single = sum((prompt + n) * (even + (prompt + n) / 2) for n in completions)
            if sparse:
                pairs = count * prompt**2 / 2 + sum(n * (prompt + n / 2) for n in completions)
                shared = sum(widths) * even + pairs / SPARSE
            else:
                shared = sum(w * (even + w) for w in widths)
            return rows if shared <= (1.0 - SAVING) * single else alone
        count += 1 + count // 8  # one by one, thousands of completions would take minutes
    return alone


def bins(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices of `lengths` in bins, longest first; ties by index. In each bin, count times longest is at most
    `budget`, and at least 95% of that are real tokens. Raises ConfigError for a length above the budget."""
    if lengths and max(lengths) > budget:
        raise ConfigError(
            f"a prompt with its completion has {max(lengths)} tokens, learner.tokens_per_microbatch is "
            f"{budget}: raise it"
        )
    result: list[list[int]] = []
    longest = tokens = 0
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        area = (len(result[-1]) + 1) * longest if result else 0
        if not result or area > budget or tokens + lengths[i] < REAL * area:
            result.append([])
            longest, tokens = lengths[i], 0
        result[-1].append(i)
        tokens += lengths[i]
    return result


def spread(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Indices of `sizes`, ascending, in `count` parts of about equal sums: the largest first, to the
    smallest."""
    parts: list[list[int]] = [[] for _ in range(count)]
    sums = [0] * count
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        part = sums.index(min(sums))
        parts[part].append(i)
        sums[part] += sizes[i]
    return [sorted(part) for part in parts]


def mask_of(ends: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Additive attention mask (B, 1, T, T): 0 where a token may look, else the minimum of `dtype`. Token j is
    seen from j on, up to before `ends` (B, T) of it.

    Additive, because SDPA would convert a boolean one in each layer. Lines start at multiples of 8 numbers,
    as CUDA's memory-efficient kernel requires; otherwise each layer copies the mask."""
    import torch

    batch, width = ends.shape
    visible = torch.arange(width, device=ends.device)[:, None] < ends[:, None, :]
    stride = -(-width // ALIGNED) * ALIGNED
    mask = torch.full((batch, 1, width, stride), torch.finfo(dtype).min, dtype=dtype, device=ends.device)[
        ..., :width
    ]
    return mask.masked_fill_(visible.tril()[:, None], 0.0)


def window_of(config: PreTrainedConfig) -> int | None:
    """The smallest attention window of any layer; None if all layers look back to the start."""
    text = config.get_text_config()
    windows = [getattr(text, name, None) for name in WINDOWS]
    # Qwen2-MoE has 0 for none.
    return min((n for n in windows if isinstance(n, int) and n > 0), default=None)
