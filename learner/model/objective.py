"""The loss of a micro-batch, as sums that add up over any cut of the batch (paper, equation 1 with 1/G_i).

    L = -Σ_i (1/Γ)(1/G_i) Σ_j (1/Z_ij) Σ_t w_ijt · min(ρ A, clip(ρ, 1 - ε_low, 1 + ε_high) A)

The minimum is the token loss `clip`; `micro.scale` holds the normalisation factors. ρ = π_θ/π_prox; w
corrects for π_prox/π_gen: the sampler's weights and arithmetic are not the learner's."""

from collections.abc import Mapping, Sequence

import torch

from hora_rl.common.algorithms import loss_of
from hora_rl.common.algorithms.base import TokenTerms
from hora_rl.common.config import ObjectiveConfig
from hora_rl.learner.rows.batch import MicroBatch

MOST_NATS, MOST_K3 = 20.0, 10.0
"""Bounds of a log-ratio in an exponential, and of a k3 estimate: verl's (`compute_policy_loss` and
`kl_penalty_forward` in verl/trainer/ppo/core_algos.py). Beyond them the term has no gradient."""
Sums = dict[str, torch.Tensor]
"""Scalars on the device: reading one waits for all work before it, so they are read once a step."""


def policy_loss(
    logprobs: torch.Tensor,
    prox: torch.Tensor,
    micro: MicroBatch,
    objective: ObjectiveConfig,
    reference: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Sums]:
    """Loss (scalar) and sums over this micro-batch's N tokens for the step's metrics. `logprobs` (N,) with
    gradient; `prox`, `reference` (N,) without; `reference` None: no KL term. All terms carry
    `micro.scale`."""
    algorithm = loss_of(objective.loss)
    assert algorithm.token_loss is not None
    weight = importance(prox - micro.logprobs, micro.sequence, objective)
    log_ratio = logprobs - prox
    if algorithm.per_completion:  # GSPO's (2507.18071): the mean over each completion, which no cut divides
        lengths = sum_of_sequences(torch.ones_like(log_ratio), micro.sequence)
        log_ratio = sum_of_sequences(log_ratio, micro.sequence) / lengths
    bounds = objective.clip_low, objective.clip_high
    gain, clipped = algorithm.token_loss(
        TokenTerms(bounded_exp(log_ratio), logprobs, micro.advantage, *bounds)
    )
    loss = -(micro.scale * weight * gain).sum()
    if reference is not None:
        loss = loss + objective.kl * (micro.scale * k3(reference - logprobs)).sum()
    with torch.no_grad():
        bounded = log_ratio.abs() > MOST_NATS
        if reference is not None:
            bounded |= k3(reference - logprobs) >= MOST_K3
        # `importance` gives 0 only to what it leaves out.
        capped = (weight == 0.0) | ((weight >= objective.importance_cap) & (objective.importance != "none"))
        stats = _sums(prox, clipped, bounded, capped, weight, micro, loss)
    return loss, stats


def bounded_exp(log_ratio: torch.Tensor) -> torch.Tensor:
    """exp of log-ratios (N,) within ±MOST_NATS. Without the bound 89 nats overflow float32, and a gradient of
    zero times infinity is NaN."""
    return torch.exp(log_ratio.clamp(-MOST_NATS, MOST_NATS))


def k3(gap: torch.Tensor) -> torch.Tensor:
    """exp(d) - d - 1 of d = log π_ref/π (N,), at most MOST_K3: a token of 30 nats alone would outweigh the
    gradient of its batch 10^9 times."""
    gap = gap.clamp(-MOST_NATS, MOST_NATS)
    return (torch.exp(gap) - gap - 1.0).clamp(max=MOST_K3)


def sum_of_sequences(values: torch.Tensor, sequence: torch.Tensor) -> torch.Tensor:
    """The sum over each token's completion (N,)."""
    zeros = torch.zeros_like(values)  # there are no more completions than tokens
    return zeros.index_add(0, sequence, values)[sequence]


def importance(log_ratio: torch.Tensor, sequence: torch.Tensor, objective: ObjectiveConfig) -> torch.Tensor:
    """w (N,): π_prox/π_gen truncated at C; or tokens, or whole sequences by their product, above C left
    out."""
    kind, cap = objective.importance, objective.importance_cap
    if kind == "none":
        return torch.ones_like(log_ratio)
    ratio = bounded_exp(log_ratio)
    if kind == "token_truncate":
        return ratio.clamp(max=cap)
    if kind == "token_mask":
        return torch.where(ratio <= cap, ratio, 0.0)
    product = bounded_exp(sum_of_sequences(log_ratio, sequence))
    return torch.where(product <= cap, product, 0.0)


def _sums(
    prox: torch.Tensor,
    clipped: torch.Tensor,
    bounded: torch.Tensor,
    capped: torch.Tensor,
    weight: torch.Tensor,
    micro: MicroBatch,
    loss: torch.Tensor,
) -> Sums:
    real = micro.scale > 0
    kl = k3(prox - micro.logprobs)  # KL(generator || learner), on the generator's own tokens
    matched = micro.match & real
    weight, advantage = weight.where(real, 0.0), micro.advantage.where(real, 0.0)
    return {
        "loss": loss.detach(),
        "tokens_trained": real.sum(),
        "clip": (clipped & real).sum(),
        "importance": weight.sum(),
        "importance_capped": (capped & real).sum(),
        "importance_max": weight.max(),
        "importance_square": weight.square().sum(),
        "kl_generator": kl.where(real, 0.0).sum(),
        "bounded": ((bounded | (kl >= MOST_K3)) & real).sum(),
        "advantage": advantage.sum(),
        "advantage_square": advantage.square().sum(),
        "drift": (prox - micro.logprobs).where(matched, 0.0).abs().sum(),
        "drift_tokens": matched.sum(),
    }


def add(sums: dict[str, float], more: Mapping[str, float], factor: float = 1.0) -> None:
    """Add `factor` times `more` to `sums`; values whose name ends with `max` are maximised instead."""
    for name, value in more.items():
        old = sums.get(name, 0.0)
        sums[name] = max(old, value) if name.endswith("max") else old + factor * value


def read(sums: Sequence[Sums]) -> list[dict[str, float]]:
    """The values of dictionaries with the same names, in one copy from the device."""
    values = torch.stack([torch.stack([v.double() for v in each.values()]) for each in sums]).tolist()
    return [dict(zip(sums[0], each, strict=True)) for each in values]
