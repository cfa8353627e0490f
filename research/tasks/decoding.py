"""Decoding of prompts of equal length in this process: their common beginning is computed once."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

Sampled = list[tuple[list[int], list[float]]]


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The cache of prompts (B, P), to which completions are added, and the logits (B, V) after them."""

    cache: DynamicCache
    logits: Tensor

    def of(self, rows: Sequence[int]) -> "Prefilled":
        """A copy for the prompts `rows`."""
        chosen, cache = torch.tensor(rows), deepcopy(self.cache)
        cache.reorder_cache(chosen)
        return Prefilled(cache, self.logits[chosen])


@torch.no_grad()
def prefilled(model: PreTrainedModel, prompts: Tensor) -> Prefilled:
    """Prompts (B, P) after the model, without gradients. The tokens that all begin with are computed once."""
    differ = (prompts != prompts[0]).any(dim=0).nonzero()
    shared = int(differ[0]) if len(differ) else prompts.shape[1] - 1
    cache = DynamicCache()
    if shared:
        model(input_ids=prompts[:1, :shared], past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache.batch_repeat_interleave(len(prompts))
    rest = prompts[:, shared:]
    logits = model(input_ids=rest, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, 0]
    return Prefilled(cache, logits)


@torch.no_grad()
def decode(
    model: PreTrainedModel,
    prompts: Prefilled,
    counts: Sequence[int],
    *,
    end: int,
    most: int,
    temperature: float = 1.0,
    random: torch.Generator,
) -> Sampled:
    """Tokens and log-probs of `counts[i]` completions of each of the B prompts, prompt by prompt, each up to
    and with its first `end` token or of `most` tokens. The cache of `prompts` is used up.

    Completions with the same beginning are one row of the model's batch until they part: `node` (n,) is
    the row at which each open completion stands.
    """
    node = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    rows = torch.arange(len(node))
    tokens, logprobs = torch.full((len(node), most), end), torch.zeros(len(node), most)
    cache, logits = prompts.cache, prompts.logits
    for index in range(most):
        log_probs = torch.log_softmax(logits.float() / temperature, dim=-1)
        next_ = _next(log_probs, node, random)
        tokens[rows, index], logprobs[rows, index] = next_, log_probs[node, next_]
        open_ = next_ != end
        rows = rows[open_]
        if not len(rows) or index == most - 1:
            break
        words = logits.shape[1]
        begun, node = torch.unique(node[open_] * words + next_[open_], return_inverse=True)
        parents = begun // words
        if not torch.equal(parents, torch.arange(len(logits))):  # it copies the whole cache
            cache.reorder_cache(parents)
        inputs = (begun % words)[:, None]
        logits = model(input_ids=inputs, past_key_values=cache, use_cache=True).logits[:, -1]
    return _cut(tokens, logprobs, end)


def _next(log_probs: Tensor, node: Tensor, random: torch.Generator) -> Tensor:
    """A token (n,) for each completion: the i-th at a row of `log_probs` (R, V) gets its i-th draw."""
    counts = torch.bincount(node, minlength=len(log_probs))
    draws = torch.multinomial(log_probs.exp(), int(counts.max()), replacement=True, generator=random)
    order = torch.argsort(node, stable=True)
    draw = torch.empty_like(node)
    draw[order] = torch.arange(len(node)) - (counts.cumsum(0) - counts)[node[order]]
    return draws[node, draw]


def _cut(tokens: Tensor, logprobs: Tensor, end: int) -> Sampled:
    """Rows of (N, L), each up to and with its first end token."""
    lengths = torch.where((tokens == end).any(1), (tokens == end).int().argmax(1) + 1, tokens.shape[1])
    return [
        (t[:n], p[:n]) for t, p, n in zip(tokens.tolist(), logprobs.tolist(), lengths.tolist(), strict=True)
    ]
