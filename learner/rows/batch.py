"""From groups to model inputs: samples with advantages and weights, in rows that share a prompt, cut into
micro-batches.

Letters: B rows of T tokens of a micro-batch, N sampled tokens in a micro-batch, G_i rollouts of a group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from hora_rl.common.types import Group
from hora_rl.learner.rows.estimator import Estimator
from hora_rl.learner.rows.packing import Row, Sample, bins, length, sequences

WIDTHS = 64
"""Widths on a card are multiples of this, so that few shapes occur and lines of masks are aligned."""


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """Samples as B rows of T tokens, padded at the right.

    `input_ids`, `position_ids`, `ends` are (B, T); all other tensors are (N,), one entry per sampled token.
    `sources[k]` is the index in the B·T tokens whose hidden state predicts token `targets[k]`; `sequence`
    numbers the samples. Before index `ends` later tokens of the row see this one: a prompt's are the row's
    width, a completion's its end; None if every row has one completion."""

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    ends: torch.Tensor | None
    sources: torch.Tensor
    targets: torch.Tensor
    logprobs: torch.Tensor
    advantage: torch.Tensor
    scale: torch.Tensor
    sequence: torch.Tensor
    match: torch.Tensor

    def to(self, device: torch.device) -> MicroBatch:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{name: v.to(device) for name, v in values.items() if v is not None})


def samples_of(
    groups: Sequence[Group], estimator: Estimator, prompts_per_batch: int, version: int
) -> list[Sample]:
    """Samples of the groups, in order, by the weight version that the step starts from. `normalisation:
    token` needs the step's tokens: `estimator`'s, or those of `groups`. Rollouts with advantage zero are
    dropped, unless a KL term acts on them."""
    objective, samples = estimator.objective, list[Sample]()
    if objective.normalisation == "token" and estimator.tokens is None:
        estimator = replace(estimator, tokens=estimator.trained_tokens(groups))
    for group in groups:
        for rollout, a in zip(group.rollouts, estimator.advantages(group), strict=True):
            if (a != 0.0 or objective.kl) and estimator.trains(rollout):
                scale = estimator.scale(group, rollout, prompts_per_batch)
                samples += sequences(group.prompt_tokens, rollout, float(a), scale, version)
    return samples


def measurable(groups: Iterable[Group], version: int, enough: int) -> list[Sample]:
    """Samples of weight zero with tokens of `version`: the first ones that hold `enough` of these, or all."""
    samples: list[Sample] = []
    tokens = 0
    for group, rollout in ((g, r) for g in groups for r in g.rollouts):
        for sample in sequences(group.prompt_tokens, rollout, version=version):
            if tokens >= enough:
                return samples
            if sample.match.any():
                samples.append(sample)
                tokens += int(sample.match.sum())
    return samples


def micro_batches(
    rows: Sequence[Row], budget: int, multiple: int = 1
) -> tuple[list[MicroBatch], dict[str, float]]:
    """Micro-batches of at most `budget` tokens each, padding included, and packing metrics of this rank. Rows
    of one sample are batched separately: they need no mask, so the model applies its attention windows.
    `multiple`: see `make_micro_batch`."""
    micro: list[MicroBatch] = []
    for part in ([r for r in rows if len(r) > 1], [r for r in rows if len(r) == 1]):
        cut = bins([length(r) for r in part], budget)
        micro += [make_micro_batch([part[i] for i in b], multiple) for b in cut]
    figures = {
        "packing/tokens": float(sum(map(length, rows))),
        "packing/processed": float(sum(m.input_ids.numel() for m in micro)),
    }
    return micro, figures


def make_micro_batch(rows: Sequence[Row], multiple: int = 1) -> MicroBatch:
    """One micro-batch, with a width that is a multiple of `multiple`, or of an eighth of it if the rows are
    short. The positions of every completion continue those of its prompt."""
    width = max(map(length, rows))
    step = multiple if width >= 8 * multiple else max(1, multiple // 8)
    width = -(-width // step) * step
    ids = np.zeros((len(rows), width), dtype=np.int64)
    positions = np.zeros_like(ids)
    ends = np.full_like(ids, width)
    sources = []
    for i, row in enumerate(rows):
        prompt = row[0].prompt
        at = len(prompt)
        ids[i, :at], positions[i, :at] = prompt, np.arange(at)
        for sample in row:
            end = at + len(sample.tokens)
            ids[i, at:end], ends[i, at:end] = sample.tokens, end
            positions[i, at:end] = np.arange(len(prompt), sample.length)
            sources.append(sample.sources(at) + i * width)
            at = end
    samples = [sample for row in rows for sample in row]
    counts = [len(s.logprobs) for s in samples]

    def per_token(values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(np.repeat(np.asarray(values), counts)).to(dtype)

    return MicroBatch(
        input_ids=torch.from_numpy(ids),
        position_ids=torch.from_numpy(positions),
        ends=torch.from_numpy(ends) if len(samples) > len(rows) else None,
        sources=torch.from_numpy(np.concatenate(sources)).long(),
        targets=torch.from_numpy(np.concatenate([s.targets for s in samples])).long(),
        logprobs=torch.from_numpy(np.concatenate([s.logprobs for s in samples])).float(),
        advantage=per_token([s.advantage for s in samples], torch.float32),
        scale=per_token([s.scale for s in samples], torch.float32),
        sequence=per_token(list(range(len(samples))), torch.int64),
        match=torch.from_numpy(np.concatenate([s.match for s in samples])),
    )


def empty_micro_batch(device: torch.device) -> MicroBatch:
    """One token of weight zero: keeps an idle rank in step with collectives."""
    token = np.zeros(1, dtype=np.int32)
    sample = Sample(token, token, np.zeros(1, np.float32), 0.0, 0.0, np.zeros(1, dtype=bool))
    return make_micro_batch([[sample]]).to(device)
