"""From groups to what the policy is run on: samples with advantages and weights, packed into micro-batches.

Letters: T packed tokens of a micro-batch, N completion tokens in it, G_i rollouts of a group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray

from common.config import Objective
from common.rewards import total
from common.types import Group, LogProbs, Tokens
from learner.advantages import advantages
from learner.packing import pack


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One rollout to learn from. `scale` = 1/(Γ G_i Z_ij); `match` (L,) marks tokens of the learner's own version."""

    prompt: Tokens
    tokens: Tokens
    logprobs: LogProbs
    advantage: float
    scale: float
    match: NDArray[np.bool_]

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.tokens)


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """Packed samples. `input_ids`, `position_ids` (1, T); all others (N,): one entry per completion token.

    `sources[k]` is the packed place whose hidden state predicts token `targets[k]`; `sequence` numbers the samples.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    sources: torch.Tensor
    targets: torch.Tensor
    logprobs: torch.Tensor
    advantage: torch.Tensor
    scale: torch.Tensor
    sequence: torch.Tensor
    match: torch.Tensor

    def to(self, device: torch.device) -> MicroBatch:
        return MicroBatch(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


def samples_of(
    groups: Sequence[Group],
    weights: Mapping[str, float],
    objective: Objective,
    prompts_per_batch: int,
    max_response: int,
    version: int,
) -> list[Sample]:
    """Samples of the groups, in their order. `version` is that of the weights the step starts from.

    Rollouts whose advantage is zero teach nothing and are left out, unless a KL term acts on them too.
    """
    samples = []
    for group in groups:
        advantage = advantages([total(r.rewards, weights) for r in group.rollouts], objective.advantage)
        for rollout, a in zip(group.rollouts, advantage, strict=True):
            if a == 0.0 and objective.kl == 0.0:
                continue
            z = max_response if objective.normalisation == "constant" else len(rollout.tokens)
            match = np.zeros(len(rollout.tokens), dtype=bool)
            for span in rollout.spans:
                match[span.start : span.end] = span.version == version
            scale = 1.0 / (prompts_per_batch * group.size * z)
            samples.append(
                Sample(group.prompt_tokens, rollout.tokens, rollout.logprobs, float(a), scale, match)
            )
    return samples


def micro_batches(samples: Sequence[Sample], budget: int) -> tuple[list[MicroBatch], dict[str, float]]:
    """Micro-batches of at most `budget` tokens each, and figures of the packing for this rank."""
    bins = pack([s.length for s in samples], budget)
    tokens = sum(s.length for s in samples)
    figures = {
        "packing/tokens": float(tokens),
        "packing/rank_tokens_max": float(tokens),
        "packing/micro_batches": float(len(bins)),
    }
    return [pack_samples([samples[i] for i in b]) for b in bins], figures


def pack_samples(samples: Sequence[Sample]) -> MicroBatch:
    """Samples end to end. Positions begin at 0 in each, which is how the attention mask tells them apart."""
    starts = np.cumsum([0, *(s.length for s in samples)])
    counts = [len(s.tokens) for s in samples]

    def per_token(values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(np.repeat(np.asarray(values), counts)).to(dtype)

    sources = [
        np.arange(len(s.tokens)) + start + len(s.prompt) - 1
        for s, start in zip(samples, starts, strict=False)
    ]
    return MicroBatch(
        input_ids=torch.from_numpy(
            np.concatenate([np.concatenate([s.prompt, s.tokens]) for s in samples])
        ).long()[None],
        position_ids=torch.from_numpy(np.concatenate([np.arange(s.length) for s in samples])).long()[None],
        sources=torch.from_numpy(np.concatenate(sources)).long(),
        targets=torch.from_numpy(np.concatenate([s.tokens for s in samples])).long(),
        logprobs=torch.from_numpy(np.concatenate([s.logprobs for s in samples])).float(),
        advantage=per_token([s.advantage for s in samples], torch.float32),
        scale=per_token([s.scale for s in samples], torch.float32),
        sequence=per_token(list(range(len(samples))), torch.int64),
        match=torch.from_numpy(np.concatenate([s.match for s in samples])),
    )


def empty_micro_batch(device: torch.device) -> MicroBatch:
    """One token of weight zero: keeps a rank in step with collectives when it has nothing to compute."""
    one = np.zeros(1, dtype=np.int32)
    sample = Sample(one, one, np.zeros(1, np.float32), 0.0, 0.0, np.zeros(1, dtype=bool))
    return pack_samples([sample]).to(device)
