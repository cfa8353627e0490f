"""Memory that a run needs, part by part, from the model's shape and the configuration. Pure arithmetic.

Bytes are GiB. The learner's part, in 16 bits (in float32 weights, gradients and moments have 4 bytes each):

    weights 2 · P (over the ranks in ZeRO-3) + float32 gradients 4 · A + master copy and Adam's moments 12 · A
    (gradients over the ranks from ZeRO-2 on, the rest from ZeRO-1 on; on the host with offload_optimizer)
    + activations + logits of one chunk + context

P: parameters, A: those that are trained. A generator's: weights 2 · P, KV cache, activations, context; the
weights over its tensor-parallel ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.config import Config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

GIB = 2**30
WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}
CONTEXT_GIB = 1.0
"""What a process takes on a card before its first tensor: CUDA's context, kernels and workspaces."""
ENGINE_GIB = 1.5
"""vLLM's activations, sampler and captured graphs."""
BUCKET = 5e8
"""Elements of the gradients that DeepSpeed sends at once; it holds two such buffers."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Parameters of a model, those of an adapter (0 without one), and the sizes that activations follow.
    `kv_width` is the number of key elements of a token and layer."""

    parameters: int
    adapter: int
    layers: int
    hidden: int
    intermediate: int
    kv_width: int
    vocabulary: int

    @classmethod
    def of(cls, hf: PreTrainedModel, config: Config) -> ModelShape:
        """The shape of a model, which may be on the meta device."""
        text = hf.config.get_text_config()
        heads = text.num_attention_heads
        head = getattr(text, "head_dim", None) or text.hidden_size // heads
        return cls(
            parameters=sum(p.numel() for p in hf.parameters()),
            adapter=_adapter_size(hf, config),
            layers=text.num_hidden_layers,
            hidden=text.hidden_size,
            intermediate=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
            kv_width=(getattr(text, "num_key_value_heads", None) or heads) * head,
            vocabulary=text.vocab_size,
        )


@dataclass(frozen=True, slots=True)
class Need:
    """GiB of one part by what they are for, on a card (or on the host where there are no cards)."""

    part: str
    parts: dict[str, float]

    @property
    def gib(self) -> float:
        return sum(self.parts.values())


def rank_need(shape: ModelShape, config: Config) -> Need:
    """One learner rank."""
    from learner.engine import effective_stage

    learner, width = config.learner, WIDTH[config.model.dtype]
    stage, world = effective_stage(config), learner.workers
    trained = shape.adapter or shape.parameters
    whole = shape.parameters + shape.adapter
    reference = shape.parameters if learner.objective.kl and not shape.adapter else 0
    copies = (whole + reference) / (world if stage == 3 else 1)
    moments = (12 if width == 2 else 8) * trained / (world if stage >= 1 else 1)
    buckets = 2 * min(trained, BUCKET) * width if stage >= 1 else 0
    return Need(
        "learner rank",
        {
            "weights": width * copies / GIB,
            "gradients": (4 * trained / (world if stage >= 2 else 1) + buckets) / GIB,
            "optimizer": 0.0 if learner.offload_optimizer else moments / GIB,
            "activations": activation_bytes(shape, config) / GIB,
            "logits": 3 * 4 * learner.logit_chunk * shape.vocabulary / GIB,
            "context": CONTEXT_GIB,
        },
    )


def activation_bytes(shape: ModelShape, config: Config) -> float:
    """What a backward pass over one micro-batch finds: in each layer about ten vectors of the hidden size,
    four of the feed-forward's and the keys and values; with gradient checkpointing one vector per layer, and
    one layer in full."""
    tokens, width = config.learner.tokens_per_microbatch, WIDTH[config.model.dtype]
    layer = 10 * shape.hidden + 4 * shape.intermediate + 4 * shape.kv_width
    if config.learner.gradient_checkpointing:
        return float(tokens * width * (shape.layers * shape.hidden + layer))
    return float(tokens * width * shape.layers * layer)


def kv_token_bytes(shape: ModelShape, config: Config) -> float:
    """Keys and values of one token in all layers, on one tensor-parallel rank."""
    return 2 * shape.layers * shape.kv_width * WIDTH[config.model.dtype] / config.generator.tensor_parallel


def least_kv_gib(shape: ModelShape, config: Config) -> float:
    """A cache that holds eight of the longest sequences: with less, generation is little but waiting."""
    return 8 * config.longest * kv_token_bytes(shape, config) / GIB


def generator_need(shape: ModelShape, config: Config, kv_gib: float) -> Need:
    """One tensor-parallel rank of a generator replica with `kv_gib` of KV cache."""
    weights = WIDTH[config.model.dtype] * (shape.parameters + shape.adapter)
    return Need(
        "generator",
        {
            "weights": weights / config.generator.tensor_parallel / GIB,
            "KV cache": kv_gib,
            "engine": ENGINE_GIB,
            "context": CONTEXT_GIB,
        },
    )


def on_one_card(rank: Need, generator: Need, config: Config) -> float:
    """GiB that both take on the card that they share: their sum. With `generator.sleep` the larger of two
    moments: a step beside an engine that sleeps, and generation beside a learner that waits."""
    if config.generator.sleep != "step":
        return rank.gib + generator.gib
    return max(rank.gib + asleep_gib(generator), waiting_gib(rank) + generator.gib)


def asleep_gib(generator: Need) -> float:
    """What an engine that sleeps keeps on its card."""
    return generator.parts["engine"] + generator.parts["context"]


def waiting_gib(rank: Need) -> float:
    """What a learner rank keeps on its card between steps."""
    return rank.gib - rank.parts["activations"] - rank.parts["logits"]


def checkpoint_gib(shape: ModelShape, config: Config) -> float:
    """One checkpoint, all ranks' files: weights, and from 16 bits the master copy, and Adam's moments."""
    width = WIDTH[config.model.dtype]
    trained = shape.adapter or shape.parameters
    return trained * (width + (12 if width == 2 else 8)) / GIB


def weights_gib(shape: ModelShape, config: Config) -> float:
    """The whole model, without an adapter."""
    return shape.parameters * WIDTH[config.model.dtype] / GIB


def published_gib(shape: ModelShape, config: Config) -> float:
    """One version of the weights as it travels."""
    return (shape.adapter or shape.parameters) * WIDTH[config.model.dtype] / GIB


def _adapter_size(hf: PreTrainedModel, config: Config) -> int:
    import torch

    lora = config.learner.lora
    if lora is None:
        return 0
    return sum(
        lora.rank * (module.in_features + module.out_features)
        for name, module in hf.named_modules()
        if isinstance(module, torch.nn.Linear) and name.rpartition(".")[2] in lora.targets
    )
