"""Qwen2 of any shape; one of two layers with random weights, the same every time."""

from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

SHAPES = {
    "0.5B": (151_936, 896, 4864, 24, 14, 2, True),
    "1.5B": (151_936, 1536, 8960, 28, 12, 2, True),
    "3B": (151_936, 2048, 11_008, 36, 16, 2, True),
    "7B": (152_064, 3584, 18_944, 28, 28, 4, False),
}
"""Of Qwen2.5, as `shape_of` takes them."""

SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
NAMES = (*SIZES, "num_attention_heads", "num_key_value_heads", "tie_word_embeddings")


def shape_of(*sizes: int, **more: Any) -> Qwen2Config:
    """`sizes` in the order of NAMES; the embedding is the head by default; `more` by name."""
    return Qwen2Config(**{"tie_word_embeddings": True, **dict(zip(NAMES, sizes, strict=False)), **more})


def without_weights(*sizes: int) -> Qwen2ForCausalLM:
    """A model of this shape on the meta device."""
    with torch.device("meta"):
        return Qwen2ForCausalLM(shape_of(*sizes))


def tiny_qwen2(vocabulary: int, hidden: int = 32, **settings: Any) -> Qwen2ForCausalLM:
    """`settings` are those of `Qwen2Config`; the embedding is the head unless they say otherwise."""
    torch.manual_seed(0)
    return Qwen2ForCausalLM(shape_of(vocabulary, hidden, 2 * hidden, 2, 4, 2, **settings)).float()
