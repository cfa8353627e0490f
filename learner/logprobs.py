"""Log-probs and entropy of the tokens that were sampled, without ever holding all logits.

The backbone runs once over the tokens; the head and its softmax run over `chunk` tokens at a time and are
recomputed in the backward pass, so float32 logits of at most `chunk` x vocabulary exist at any moment.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from learner.batch import MicroBatch


class Policy(torch.nn.Module):
    """A causal language model that answers with log-probs. Everything goes through modules, as ZeRO-3 needs."""

    def __init__(self, hf: Any) -> None:
        super().__init__()
        self.hf = hf

    def forward(self, micro: MicroBatch, temperature: float, chunk: int) -> tuple[torch.Tensor, torch.Tensor]:
        """log π(targets) (N,) float32 at `temperature`, and entropy (N,) float32 without gradient."""
        # Rows of their own need neither mask nor positions: padding stands where causal attention never looks.
        where = {"position_ids": micro.position_ids} if micro.packed else {}
        hidden = self.hf.model(input_ids=micro.input_ids, use_cache=False, **where).last_hidden_state
        states = hidden.flatten(0, 1)[micro.sources]
        logprobs, entropies = [], []
        for at in range(0, len(micro.targets), chunk):
            part = slice(at, at + chunk)
            lp, h = checkpoint(
                self._head, states[part], micro.targets[part], temperature, use_reentrant=False
            )
            logprobs.append(lp)
            entropies.append(h)
        return torch.cat(logprobs), torch.cat(entropies)

    def _head(
        self, states: torch.Tensor, targets: torch.Tensor, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.hf.lm_head(states).float() / temperature
        log_z = logits.logsumexp(-1)
        chosen = logits.gather(-1, targets[:, None])[:, 0] - log_z
        with torch.no_grad():
            entropy = log_z - (logits.softmax(-1) * logits).sum(-1)
        return chosen, entropy
