"""The loss of a micro-batch, as sums that add up over any cut of the batch (paper, equation 1 with 1/G_i).

    L = -Σ_i (1/Γ)(1/G_i) Σ_j (1/Z_ij) Σ_t w_ijt · min(ρ A, clip(ρ, 1 - ε_low, 1 + ε_high) A)

ρ = π_θ/π_prox; w corrects for π_prox/π_gen, the sampler's weights and arithmetic not being the learner's.
"""

from __future__ import annotations

import torch

from common.config import Objective
from learner.batch import MicroBatch


def policy_loss(
    logprobs: torch.Tensor,
    prox: torch.Tensor,
    micro: MicroBatch,
    objective: Objective,
    reference: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Loss (scalar) and sums over this micro-batch's N tokens for the step's metrics.

    `logprobs` (N,) with gradient; `prox`, `reference` (N,) without. All terms carry `micro.scale`.
    """
    weight = importance(prox - micro.logprobs, micro.sequence, objective)
    ratio = torch.exp(logprobs - prox)
    clipped = ratio.clamp(1.0 - objective.clip_low, 1.0 + objective.clip_high)
    gain = torch.minimum(ratio * micro.advantage, clipped * micro.advantage)
    loss = -(micro.scale * weight * gain).sum()
    if reference is not None:
        gap = reference - logprobs
        loss = loss + objective.kl * (micro.scale * (torch.exp(gap) - gap - 1.0)).sum()
    with torch.no_grad():
        stats = _sums(logprobs, prox, ratio, clipped, weight, micro, loss)
    return loss, stats


def importance(log_ratio: torch.Tensor, sequence: torch.Tensor, objective: Objective) -> torch.Tensor:
    """w (N,): π_prox/π_gen per token truncated at C; or tokens, or whole sequences by their product, above C left out."""
    kind, cap = objective.importance, objective.importance_cap
    if kind == "none":
        return torch.ones_like(log_ratio)
    ratio = torch.exp(log_ratio)
    if kind == "token_truncate":
        return ratio.clamp(max=cap)
    if kind == "token_mask":
        return torch.where(ratio <= cap, ratio, 0.0)
    count = int(sequence.max()) + 1
    product = torch.exp(torch.zeros(count, device=ratio.device).index_add(0, sequence, log_ratio))[sequence]
    return torch.where(product <= cap, product, 0.0)


def _sums(
    logprobs: torch.Tensor,
    prox: torch.Tensor,
    ratio: torch.Tensor,
    clipped: torch.Tensor,
    weight: torch.Tensor,
    micro: MicroBatch,
    loss: torch.Tensor,
) -> dict[str, float]:
    real = micro.scale > 0
    gap = micro.logprobs - prox
    limiting = (ratio != clipped) & (ratio * micro.advantage > clipped * micro.advantage) & real
    matched = micro.match & real
    return {
        "loss": float(loss),
        "tokens_trained": float(real.sum()),
        "clip": float(limiting.sum()),
        "importance": float(weight[real].sum()),
        "importance_max": float(weight[real].max()) if bool(real.any()) else 0.0,
        "importance_square": float(weight[real].square().sum()),
        # k3 estimate of KL(generator || learner) on the generator's own tokens
        "kl_generator": float((torch.exp(-gap) - 1.0 + gap)[real].sum()),
        "advantage": float(micro.advantage[real].sum()),
        "advantage_square": float(micro.advantage[real].square().sum()),
        "drift": float((prox - micro.logprobs)[matched].abs().sum()),
        "drift_tokens": float(matched.sum()),
    }
