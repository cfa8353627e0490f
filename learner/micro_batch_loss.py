"""A micro-batch with its fixed log-probs, and its share of the loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hora_rl.common.config import Objective
from hora_rl.learner.batch import MicroBatch
from hora_rl.learner.objective import policy_loss


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
        objective: Objective,
        acted: float = 0.0,
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Loss (scalar) and sums of this micro-batch, from `logprobs` and `entropy` (N,).

        `acted` is the number of tokens in the batch with an entropy bonus; 0 without a bonus.
        """
        prox = logprobs.detach() if self.prox is None else self.prox
        loss, sums = policy_loss(logprobs, prox, self.micro, objective, self.reference, self.keep)
        sums["entropy"] = float(entropy.detach()[self.micro.scale > 0].sum())
        if acted:
            loss = loss - objective.entropy_coef * entropy[self.acted].sum() / acted
        return loss, sums
