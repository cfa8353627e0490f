"""Attention on a card that skips what no token sees.

A kernel with a dense mask computes all T² products of a row. FlexAttention skips blocks in which no token
sees another, and looks into the mask only in blocks of which a part is seen. On a CPU it has no backward
pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask

from hora_rl.learner.model.flops import head_size

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BLOCK = 128
LEAST_HEAD = 16
"""Elements of a head that FlexAttention's kernels need."""


def block_mask_of(ends: torch.Tensor) -> BlockMask:
    """The mask of `packing.mask_of` for `ends` (B, T), from their bounds in each block: T x T numbers never
    exist, and nothing waits for the device."""
    batch, width = ends.shape
    count = -(-width // BLOCK)
    blocks = functional.pad(ends, (0, count * BLOCK - width), value=width).view(batch, 1, count, BLOCK)
    causal = torch.ones(count, count, dtype=torch.bool, device=ends.device).tril()
    first = torch.arange(count, device=ends.device)[:, None] * BLOCK  # of a block of queries
    seen = causal & (first < blocks.amax(-1))
    full = causal.tril(-1) & ((first + BLOCK).clamp(max=width) <= blocks.amin(-1))

    def mask_mod(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return (q >= kv) & (q < ends[b, kv])

    return BlockMask.from_kv_blocks(
        *_listed(seen & ~full), *_listed(full), BLOCK, mask_mod=mask_mod, seq_lengths=(width, width)
    )


def _listed(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How many blocks (B, 1, n) each block of queries has in `blocks` (B, n, n), and which, these first."""
    numbers = blocks.to(torch.int32)
    indices = numbers.argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    return numbers.sum(-1, dtype=torch.int32)[:, None], indices[:, None]


def takes_block_masks(model: PreTrainedModel) -> bool:
    """Whether `model` may take rows that share a prompt with a mask of blocks."""
    text = model.config.get_text_config()
    smallest = min(head_size(layer) for layer in text.per_layer_config)
    return bool(text._attn_implementation == "sdpa" and smallest >= LEAST_HEAD)


def use_block_masks(model: PreTrainedModel) -> bool:
    """`takes_block_masks`; if so, `sdpa` runs FlexAttention for such a mask in this process."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if not takes_block_masks(model):
        return False
    ALL_ATTENTION_FUNCTIONS["sdpa"] = by_mask
    return True


def by_mask(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | BlockMask | None,
    **settings: object,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """transformers' attention by the kind of mask."""
    from transformers.integrations.flex_attention import flex_attention_forward
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    flex = isinstance(attention_mask, BlockMask)
    output: tuple[torch.Tensor, torch.Tensor | None] = (
        flex_attention_forward if flex else sdpa_attention_forward
    )(module, query, key, value, attention_mask, **settings)
    return output
