"""Model FLOPs of a training step and the peak of a device, for MFU and for balancing the ranks.

Forward and backward cost 6 FLOPs per weight and token (4 if it is frozen), and attention's two products 12 ·
layers · width per pair of tokens, of which a sequence of L tokens needs L²/2 (PaLM, appendix B). A shared
prompt counts once, the embedding look-up nothing, and the head runs on completion tokens only. Recomputation
and the forward passes of π_prox and the reference are not model FLOPs of the update."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hora_rl.learner.rows.packing import Row, length

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Configuration keys for the number of experts."""

# Dense bfloat16 tensor-core FLOP/s by the makers' data sheets, found by the first name that occurs in the
# device's.
PEAK_BF16 = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H200": 989e12,
    "B200": 2250e12,
    "A100": 312e12,
    "L40S": 362e12,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a model per token: weights of the body and of the head, and heads x head size of all layers.
    Only the experts that a token is sent to count. `trained`: trained weights of the body; None if all are
    trained, the head's included."""

    body: int
    head: int
    width: int
    trained: int | None = None

    @classmethod
    def of(cls, hf: PreTrainedModel) -> Shape:
        """The shape of a causal language model; under ZeRO-3 of the full model, not of the shards."""
        config = hf.config.get_text_config()
        size = {p: _used(p, config) for p in hf.parameters()}
        weights, trained = sum(size.values()), sum(n for p, n in size.items() if p.requires_grad)
        head = config.vocab_size * config.hidden_size
        look_up = 0 if config.tie_word_embeddings else head
        width = sum(queries for queries, _ in widths(config))
        return cls(weights - head - look_up, head, width, trained if trained < weights else None)

    @property
    def per_token(self) -> float:
        """Forward and backward FLOPs of the body for one token, without attention's products."""
        trained = self.body if self.trained is None else self.trained
        return 6.0 * trained + 4.0 * (self.body - trained)

    @property
    def even(self) -> float:
        """Row length at which one token's attention products with the full row cost as much as the body."""
        return self.per_token / (12.0 * self.width)

    def flops(self, rows: Iterable[Row]) -> float:
        """Forward and backward over `rows`."""
        per_logits = (6.0 if self.trained is None else 4.0) * self.head
        return sum(
            self.per_token * length(row)
            + per_logits * sum(len(s.logprobs) for s in row)
            + 6.0 * self.width * _pairs(row)
            for row in rows
        )


def head_size(layer: PretrainedConfig) -> int:
    return int(getattr(layer, "head_dim", None) or layer.hidden_size // layer.num_attention_heads)


def widths(config: PretrainedConfig) -> list[tuple[int, int]]:
    """Query and key elements of one token in each layer: Gemma-4 has layers of two kinds."""
    sizes = []
    for layer in config.per_layer_config:
        heads, size = layer.num_attention_heads, head_size(layer)
        sizes.append((heads * size, (getattr(layer, "num_key_value_heads", None) or heads) * size))
    return sizes


def _pairs(row: Row) -> int:
    """Twice the number of token pairs that see one another."""
    prompt = len(row[0].prompt)
    return sum(s.length**2 for s in row) - (len(row) - 1) * prompt**2


def _used(parameter: torch.Tensor, config: PretrainedConfig) -> int:
    """The weights of `parameter` that act on one token: of fused experts (E, …) only the routed ones."""
    shape = getattr(parameter, "ds_shape", parameter.shape)
    elements = int(getattr(parameter, "ds_numel", parameter.numel()))
    experts = next((n for key in EXPERTS if (n := getattr(config, key, None))), 0)
    if len(shape) != 3 or shape[0] != experts:
        return elements
    return elements * int(config.num_experts_per_tok) // experts


def peak_flops(device: str, dtype: str) -> float | None:
    """Peak FLOP/s of the device with this name in `dtype`; None if unknown."""
    if dtype not in ("bfloat16", "float16") or "MIG" in device:  # a slice of a card has a part of its peak
        return None
    return next((peak for name, peak in PEAK_BF16.items() if name in device), None)
