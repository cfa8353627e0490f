"""Log-probs and entropy of the sampled tokens, without ever holding all logits.

The backbone runs once over the tokens. The head and its softmax run over `chunk` tokens at a time and again
in the backward pass, so float32 logits of at most `chunk` x vocabulary exist at any moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from hora_rl.learner.model.cuda_kernels import block_mask_of
from hora_rl.learner.model.head import Head, OwnPath, scored
from hora_rl.learner.rows.batch import MicroBatch
from hora_rl.learner.rows.prefixes import mask_of

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask
    from transformers import PreTrainedModel


class Policy(torch.nn.Module):
    """A causal language model that returns log-probs. Everything runs inside modules, as ZeRO-3 requires.

    Raises ConfigError for an unsupported family.
    """

    def __init__(self, hf: PreTrainedModel) -> None:
        super().__init__()
        self.hf = hf
        self._path = OwnPath(hf)
        self.head = Head(self._path)
        self.blocks = False  # see cuda_kernels.use_block_masks

    def forward(
        self, micro: MicroBatch, temperature: float, chunk: int, by_model: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """log π(targets) (N,) float32 at `temperature`, and entropy (N,) float32 without gradient.

        With `by_model` all logits exist at once and come from the model's forward, for comparison.
        """
        where: dict[str, torch.Tensor | BlockMask] = {}
        if micro.segments is not None:  # else padding is at the right, where causal attention never looks
            segments = micro.segments
            mask = block_mask_of(segments) if self.blocks else mask_of(segments, self.hf.dtype)
            where = {"position_ids": micro.position_ids, "attention_mask": mask}
        if by_model:
            with torch.compiler.set_stance("force_eager"):
                logits = self.hf(input_ids=micro.input_ids, use_cache=False, **where).logits
            return scored(logits.flatten(0, 1)[micro.sources], micro.targets, temperature)
        with unpacked():
            hidden = self._path.backbone(input_ids=micro.input_ids, **where)
        states = hidden.flatten(0, 1)[micro.sources]
        result: tuple[torch.Tensor, torch.Tensor] = self.head(states, micro.targets, temperature, chunk)
        return result


@contextmanager
def unpacked() -> Iterator[None]:
    """Keep transformers from looking for sequences one behind the other in a row without a mask: there are
    none, and it would wait for the device in every forward pass."""
    from transformers import masking_utils

    look = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda position_ids: None
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = look


def without_dropout(hf: PreTrainedModel) -> PreTrainedModel:
    """Prepare `hf` for training: deterministic outputs, and gradient checkpointing works.

    Dropout would give log-probs that no sampler used. Layers recompute activations only in training mode, so
    they stay in that mode with their dropout set to 0.
    """
    hf.eval()
    for module in hf.modules():
        if getattr(module, "gradient_checkpointing", False):
            module.training = True
            for name, value in list(vars(module).items()):
                if "drop" in name and isinstance(value, float):
                    setattr(module, name, 0.0)
    return hf
