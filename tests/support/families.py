"""Tiny random models of many families, with all that makes them differ from Llama turned on."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCABULARY = 97
SHAPE = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "initializer_range": 0.3}
SHAPE |= {"num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {**SHAPE, "num_key_value_heads": 2}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.3}
OPT = {k: v for k, v in SHAPE.items() if not k.startswith(("interm", "init"))}
SETTINGS: dict[str, dict[str, Any]] = {
    "qwen2": GROUPED,
    "qwen3": {**GROUPED, "head_dim": 8},
    "llama": SHAPE,
    "mistral": {**GROUPED, "sliding_window": 8},
    "phi3": {**GROUPED, "resid_pdrop": 0.1, "attention_dropout": 0.1},
    "gemma2": {**GROUPED, "head_dim": 8, "final_logit_softcapping": 3.0},
    "granite": {**GROUPED, "logits_scaling": 8.0, "attention_dropout": 0.1},
    "cohere": {**GROUPED, "logit_scale": 0.0625},
    "olmo": {**GROUPED, "clip_qkv": 2.0},
    "gpt_neox": {**SHAPE, "hidden_dropout": 0.1, "attention_dropout": 0.1},
    "gpt2": GPT2,  # dropout of 0.1 by default, everywhere
    "opt": {**OPT, "ffn_dim": 64, "word_embed_proj_dim": 32},
    "falcon": {k: v for k, v in SHAPE.items() if k != "intermediate_size"},
    "bloom": {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "mamba": {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2},
    "mamba2": {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 4}
    | {"head_dim": 16, "state_size": 8, "n_groups": 1},
}


def model_of(family: str, **more: Any) -> Any:
    """A random float32 model of `family`, the same every time, in evaluation mode. `more` of its settings."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **(SETTINGS[family] | TOKENS | more))
    return AutoModelForCausalLM.from_config(config).eval()


def write_model(family: str, folder: Path, **more: Any) -> Path:
    """Such a model as a folder with the demo's tokenizer."""
    from tools.demo_models import make_tokenizer

    model_of(family, **more).save_pretrained(folder)
    make_tokenizer(512).save_pretrained(folder)
    return folder


def glm4_moe() -> Any:
    """The configuration of a tiny mixture whose experts are one tensor in memory, and whose router has a
    buffer that its files hold."""
    from transformers.models.glm4_moe import Glm4MoeConfig

    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    experts = {"moe_intermediate_size": 8, "n_routed_experts": 8, "num_experts_per_tok": 2}
    groups = {"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
    return Glm4MoeConfig(**sizes, **heads, **experts, **groups)
