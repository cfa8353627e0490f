"""The loss of a micro-batch, as sums that add up over any cut of the batch (paper, equation 1 with 1/G_i).

    L = -Σ_i (1/Γ)(1/G_i) Σ_j (1/Z_ij) Σ_t w_ijt · min(ρ A, clip(ρ, 1 - ε_low, 1 + ε_high) A)

or another gain than the minimum, or 1/(tokens of the batch) for the three factors: `micro.scale` carries
them. ρ = π_θ/π_prox; w corrects for π_prox/π_gen, the sampler's weights and arithmetic not being the
learner's.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from hora_rl.common.config import ObjectiveConfig
from hora_rl.learner.rows.batch import MicroBatch

Gain = tuple[torch.Tensor, torch.Tensor]
"""What a token adds to the objective (N,), and which tokens the loss holds back (N,)."""
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
    keep: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Sums]:
    """Loss (scalar) and sums over this micro-batch's N tokens for the step's metrics.

    `logprobs` (N,) with gradient; `prox`, `reference` (N,) without; tokens outside `keep` (N,) move the
    policy by KL alone. All terms carry `micro.scale`.
    """
    weight = importance(prox - micro.logprobs, micro.sequence, objective)
    log_ratio = logprobs - prox
    if objective.ratio == "sequence":
        log_ratio = mean_of_sequences(log_ratio, micro.sequence)
    ratio = bounded_exp(log_ratio)
    gain, limited = GAINS[objective.loss](ratio, logprobs, micro.advantage, objective)
    gain = gain if keep is None else gain * keep
    loss = -(micro.scale * weight * gain).sum()
    if reference is not None:
        loss = loss + objective.kl * (micro.scale * KL[objective.kl_estimator](reference - logprobs)).sum()
    with torch.no_grad():
        bounded = log_ratio.abs() > MOST_NATS
        if reference is not None and objective.kl_estimator == "k3":
            bounded |= k3(reference - logprobs) >= MOST_K3
        # `importance` gives 0 only to what it leaves out.
        capped = (weight == 0.0) | ((weight >= objective.importance_cap) & (objective.importance != "none"))
        stats = _sums(prox, limited, bounded, capped, weight, micro, loss)
    return loss, stats


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """N tokens with π_prox and π_ref (N,), and a mask of the tokens with a policy gradient (N,). None means:
    the policy itself, no KL term, all tokens."""

    micro: MicroBatch
    prox: torch.Tensor | None = None
    reference: torch.Tensor | None = None
    keep: torch.Tensor | None = None

    @property
    def acted(self) -> torch.Tensor:
        """Mask (N,) of the tokens with an entropy bonus: those with a policy gradient, without padding."""
        real = self.micro.scale > 0
        return real if self.keep is None else real & self.keep

    def loss(
        self,
        logprobs: torch.Tensor,
        entropy: torch.Tensor,
        objective: ObjectiveConfig,
        acted: float = 0.0,
    ) -> tuple[torch.Tensor, Sums]:
        """Loss (scalar) and sums of this micro-batch, from `logprobs` and `entropy` (N,).

        `acted` is the number of tokens in the batch with an entropy bonus; 0 without a bonus.
        """
        prox = logprobs.detach() if self.prox is None else self.prox
        loss, sums = policy_loss(logprobs, prox, self.micro, objective, self.reference, self.keep)
        sums["entropy"] = entropy.detach().where(self.micro.scale > 0, 0.0).sum()
        if acted:
            loss = loss - objective.entropy_coef * entropy.where(self.acted, 0.0).sum() / acted
        return loss, sums


def clip(
    ratio: torch.Tensor, logprobs: torch.Tensor, advantage: torch.Tensor, objective: ObjectiveConfig
) -> Gain:
    """min(ρA, clip(ρ, 1 - ε_low, 1 + ε_high) A); with `clip_dual` ρ is bounded above where A is negative
    too."""
    clipped = ratio.clamp(1.0 - objective.clip_low, 1.0 + objective.clip_high)
    bounded = ratio if objective.clip_dual is None else ratio.clamp(max=objective.clip_dual)
    gain = torch.minimum(bounded * advantage, clipped * advantage)
    return gain, gain != ratio * advantage


def cispo(
    ratio: torch.Tensor, logprobs: torch.Tensor, advantage: torch.Tensor, objective: ObjectiveConfig
) -> Gain:
    """min(ρ, 1 + ε_high) A log π, without gradient through ρ (MiniMax-M1, 2506.13585): no token is left
    out."""
    bound = 1.0 + objective.clip_high
    return ratio.detach().clamp(max=bound) * advantage * logprobs, ratio > bound


def sapo(
    ratio: torch.Tensor, logprobs: torch.Tensor, advantage: torch.Tensor, objective: ObjectiveConfig
) -> Gain:
    """(4/τ) σ(τ(ρ - 1)) A with the paper's τ, 1 for positive A, else 1.05 (2511.20347): at ρ = 1 its gradient
    is that of ρA, and it fades beyond."""
    steep = torch.where(advantage > 0, 1.0, 1.05)
    gate = torch.sigmoid(steep * (ratio - 1.0)) * 4.0 / steep
    return gate * advantage, torch.zeros_like(ratio, dtype=torch.bool)


def bounded_exp(log_ratio: torch.Tensor) -> torch.Tensor:
    """exp of log-ratios (N,) within ±MOST_NATS. Without the bound 89 nats overflow float32, and a gradient of
    zero times infinity is NaN."""
    return torch.exp(log_ratio.clamp(-MOST_NATS, MOST_NATS))


def k3(gap: torch.Tensor) -> torch.Tensor:
    """exp(d) - d - 1 of d = log π_ref/π (N,), at most MOST_K3: a token of 30 nats alone would outweigh the
    gradient of its batch 10^9 times."""
    gap = gap.clamp(-MOST_NATS, MOST_NATS)
    return (torch.exp(gap) - gap - 1.0).clamp(max=MOST_K3)


GAINS = {"clip": clip, "cispo": cispo, "sapo": sapo}
KL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {  # of log π_ref/π
    "k1": lambda gap: -gap,
    "k2": lambda gap: gap.square() / 2.0,
    "k3": k3,
}


def mean_of_sequences(values: torch.Tensor, sequence: torch.Tensor) -> torch.Tensor:
    """The mean over each token's completion (N,): GSPO's log-ratio (2507.18071). No micro-batch cuts a
    completion."""
    return sum_of_sequences(values, sequence) / sum_of_sequences(torch.ones_like(values), sequence)


def sum_of_sequences(values: torch.Tensor, sequence: torch.Tensor) -> torch.Tensor:
    """The sum over each token's completion (N,)."""
    zeros = torch.zeros_like(values)  # there are no more completions than tokens
    return zeros.index_add(0, sequence, values)[sequence]


def importance(log_ratio: torch.Tensor, sequence: torch.Tensor, objective: ObjectiveConfig) -> torch.Tensor:
    """w (N,): π_prox/π_gen per token truncated at C; or tokens, or whole sequences by their product, above C
    left out."""
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
    limited: torch.Tensor,
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
        "clip": (limited & real).sum(),
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
