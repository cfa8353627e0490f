"""A micro-batch with what is fixed while its batch is trained, and its share of the loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hora_rl.common.config import Objective
from hora_rl.learner.batch import MicroBatch
from hora_rl.learner.objective import policy_loss


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """N tokens, π_prox and π_ref (N,), and which tokens move the policy (N,). None: the policy itself, no KL
    term, all."""

    micro: MicroBatch
    prox: torch.Tensor | None = None
    reference: torch.Tensor | None = None
    keep: torch.Tensor | None = None

    @property
    def acted(self) -> torch.Tensor:
        """Which tokens the entropy bonus is paid for (N,): those that move the policy, padding left out."""
        real = self.micro.scale > 0
        return real if self.keep is None else real & self.keep

    def loss(
        self,
        logprobs: torch.Tensor,
        entropy: torch.Tensor,
        objective: Objective,
        coefficient: float = 0.0,
        acted: float = 0.0,
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Loss (scalar) and sums of this micro-batch, from `logprobs` and `entropy` (N,).

        `acted` is the number of tokens of the whole batch that the entropy bonus is paid for; 0: there is no
        bonus.
        """
        prox = logprobs.detach() if self.prox is None else self.prox
        loss, sums = policy_loss(logprobs, prox, self.micro, objective, self.reference, self.keep)
        sums["entropy"] = float(entropy.detach()[self.micro.scale > 0].sum())
        if acted:
            bonus = entropy[self.acted].sum() / acted
            loss = loss - coefficient * bonus
            sums |= {"entropy_acted": float(bonus.detach()), "entropy_coefficient_max": coefficient}
        return loss, sums
