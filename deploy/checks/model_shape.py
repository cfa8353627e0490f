"""Sizes of a model that memory and FLOPs of a run depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hora_rl.common.config import LoraConfig
from hora_rl.learner.model.flops import Shape, widths
from hora_rl.learner.rows.prefixes import window_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Parameters of a model and of its adapter (0: none), and the sizes of activations: key elements of a
    token and layer, its query elements (0: `hidden`), weights without embeddings and head (0: derived), and
    the longest sequence that may share a prompt."""

    parameters: int
    adapter: int
    layers: int
    hidden: int
    intermediate: int
    kv_width: int
    vocabulary: int
    query_width: int = 0
    body: int = 0
    window: int | None = None

    @property
    def queries(self) -> int:
        return self.query_width or self.hidden

    @property
    def even(self) -> float:
        """Row length in tokens at which attention costs as many FLOPs as the rest (`learner.model.flops`)."""
        body = self.body or self.parameters - self.vocabulary * self.hidden
        trained = self.adapter or body
        return (6.0 * trained + 4.0 * (body - trained)) / (12.0 * self.layers * self.queries)

    def pinned_bytes(self, width: int) -> float:
        """Host memory of a sleeping engine for weights of `width` bytes: vLLM backs up each segment in pinned
        memory, and torch rounds a backup up to a power of two (`pinned_max_round_threshold_mb` would let it
        reuse blocks that are too small, torch 2.13). Merged tensors from 10 MiB on have segments of their
        own, in steps of 2 MiB; others share 20 MiB, which become 32. Weights of no known tensor, such as
        experts, count twice."""
        attention = self.queries + 2 * self.kv_width, self.queries
        layer = [n * self.hidden for n in (*attention, 2 * self.intermediate, self.intermediate)]
        embedding, mib = self.vocabulary * self.hidden, 2**20
        untied = self.parameters >= self.layers * sum(layer) + 2 * embedding
        tensors = layer * self.layers + [embedding] * (1 + untied)
        segments = (-(-size * width // (2 * mib)) * 2 * mib for size in tensors if size * width >= 10 * mib)
        small = sum(size * width for size in tensors if size * width < 10 * mib)
        unknown = max(0, self.parameters - sum(tensors)) * width
        return sum(1 << (segment - 1).bit_length() for segment in segments) + 1.6 * small + 2.0 * unknown

    @classmethod
    def of(cls, hf: PreTrainedModel, lora: LoraConfig | None) -> ModelShape:
        """The shape of a model, which may be on the meta device, and of its adapter."""
        text = hf.config.get_text_config()
        queries, keys = zip(*widths(text), strict=True)
        return cls(
            parameters=sum(p.numel() for p in hf.parameters()),
            adapter=_adapter_size(hf, lora) if lora else 0,
            layers=text.num_hidden_layers,
            hidden=text.hidden_size,
            intermediate=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
            kv_width=max(keys),
            vocabulary=text.vocab_size,
            query_width=sum(queries) // len(queries),
            body=Shape.of(hf).body,
            window=window_of(hf.config),
        )


def _adapter_size(hf: PreTrainedModel, lora: LoraConfig) -> int:
    import torch

    return sum(
        lora.rank * (module.in_features + module.out_features)
        for name, module in hf.named_modules()
        if isinstance(module, torch.nn.Linear) and name.rpartition(".")[2] in lora.targets
    )
