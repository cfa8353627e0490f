"""A Qwen2 of two layers with random weights, the same every time."""

from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM


def tiny_qwen2(vocabulary: int, hidden: int = 32, seed: int = 0, **settings: Any) -> Qwen2ForCausalLM:
    """`settings` are those of `Qwen2Config`; the embedding is the head unless they say otherwise."""
    torch.manual_seed(seed)
    sizes = {
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    }
    config = Qwen2Config(vocab_size=vocabulary, hidden_size=hidden, **(sizes | settings))
    return Qwen2ForCausalLM(config).float()
