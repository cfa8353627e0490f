"""Tiny random checkpoints of the families that users bring, in the form in which they are published: their
configuration class, the names in their files, tied heads, and a chat template of their shape."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.support.chat_model import chat_tokenizer

HIDDEN, LAYERS = 128, 2
SHAPE = {
    "hidden_size": HIDDEN,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
}
SHAPE |= {"num_key_value_heads": 2, "max_position_embeddings": 512}
HEADS = {"head_dim": 32}
VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
VISION |= {"image_size": 28, "patch_size": 14}
TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}


@dataclass(frozen=True)
class Template:
    """A chat template, and the marks in it that are special tokens."""

    text: str
    marks: tuple[str, ...]


def turns(begin: str, opens: str, closes: str, ends: str, assistant: str = "assistant") -> Template:
    """`begin` once, then of every message `opens` ROLE `closes` TEXT `ends`."""
    role = f"{{{{ '{assistant}' if m['role'] == 'assistant' else m['role'] }}}}"
    turn = f"{opens}{role}{closes}{{{{ m['content'] }}}}{ends}"
    asks = f"{{% if add_generation_prompt %}}{opens}{assistant}{closes}{{% endif %}}"
    marks = dict.fromkeys(m.strip() for m in (begin, opens, closes, ends) if m.strip())
    return Template(f"{begin}{{% for m in messages %}}{turn}{{% endfor %}}{asks}", tuple(marks))


CHATML = turns("", "<|im_start|>", "\n", "<|im_end|>\n")
LLAMA3 = turns("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>")
GEMMA = turns("<bos>", "<start_of_turn>", "\n", "<end_of_turn>\n", "model")
GEMMA4 = turns("<bos>", "<|turn>", "\n", "<turn|>\n", "model")
PHI4 = turns("", "<|im_start|>", "<|im_sep|>", "<|im_end|>")
HARMONY = turns("", "<|start|>", "<|message|>", "<|end|>")
GLM4 = turns("[gMASK]<sop>", "<|", "|>\n", "")
GRANITE = turns("", "<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>\n")
LFM2 = turns("<|startoftext|>", "<|im_start|>", "\n", "<|im_end|>\n")
DEEPSEEK = turns("<|begin▁of▁sentence|>", "<|", "|>", "<|end▁of▁sentence|>", "Assistant")
MISTRAL = Template(
    "<s>{% for m in messages %}{% if m['role'] == 'user' %}[INST]{{ m['content'] }}[/INST]"
    "{% else %}{{ m['content'] }}</s>{% endif %}{% endfor %}",
    ("<s>", "[INST]", "[/INST]", "</s>"),
)


@dataclass(frozen=True)
class Family:
    """A family's published class, its settings, and the turns of its chat template. `beside`: tensors in its
    files that transformers does not load. `needs`: settings without which it is refused. `refused`: what a
    refusal names, for a family that cannot be trained."""

    architecture: str
    settings: dict[str, Any]
    template: Template = CHATML
    beside: dict[str, tuple[int, ...]] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    refused: str = ""


def composite(text: dict[str, Any], vision: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"text_config": text, "vision_config": vision, **more}


EXPERTS = {"moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
LINEAR |= {"linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4}
MIXED = {"num_hidden_layers": 4, "layer_types": ["linear_attention"] * 3 + ["full_attention"]}
QWEN3_5 = SHAPE | HEADS | LINEAR | MIXED | {"partial_rotary_factor": 0.5, "attn_output_gate": True}
QWEN_VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "patch_size": 14}
QWEN_VISION |= {"out_hidden_size": HIDDEN, "num_position_embeddings": 16}
SLIDING = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
GEMMA4_TEXT = SHAPE | HEADS | SLIDING | TIED | {"global_head_dim": 64, "final_logit_softcapping": 30.0}
GEMMA4_VISION = VISION | {"head_dim": 8, "num_key_value_heads": 4}
SECTIONS = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]}
MTP = {"mtp.fc.weight": (HIDDEN, 2 * HIDDEN), "mtp.norm.weight": (HIDDEN,)}

BF16 = ("model.dtype=bfloat16",)

FAMILIES = {
    "qwen2.5": Family("Qwen2ForCausalLM", SHAPE | TIED),
    "deepseek-r1-distill": Family("Qwen2ForCausalLM", SHAPE | UNTIED, DEEPSEEK),
    "qwen3": Family("Qwen3ForCausalLM", SHAPE | HEADS | TIED),
    "qwen3-moe": Family("Qwen3MoeForCausalLM", SHAPE | HEADS | EXPERTS | UNTIED),
    "qwen3.5": Family(
        "Qwen3_5ForConditionalGeneration",
        composite(QWEN3_5 | TIED, QWEN_VISION, **TIED),
        beside=MTP,
        needs=BF16,
    ),
    "qwen3.5-moe": Family(
        "Qwen3_5MoeForConditionalGeneration",
        composite(
            QWEN3_5 | EXPERTS | {"shared_expert_intermediate_size": 64} | UNTIED, QWEN_VISION, **UNTIED
        ),
        beside=MTP,
        needs=BF16,
    ),
    "qwen2.5-vl": Family(
        "Qwen2_5_VLForConditionalGeneration",
        composite(
            SHAPE | UNTIED | {"rope_parameters": SECTIONS},
            QWEN_VISION | {"window_size": 56, "fullatt_block_indexes": [0]},
            **UNTIED,
        ),
    ),
    "qwen3-vl": Family(
        "Qwen3VLForConditionalGeneration",
        composite(
            SHAPE | HEADS | TIED | {"rope_parameters": SECTIONS | {"mrope_interleaved": True}},
            QWEN_VISION | {"deepstack_visual_indexes": [0]},
            **TIED,
        ),
    ),
    "llama-3": Family("LlamaForCausalLM", SHAPE | TIED, LLAMA3),
    "smollm2": Family("LlamaForCausalLM", SHAPE | TIED),
    "smollm3": Family("SmolLM3ForCausalLM", SHAPE | TIED | {"no_rope_layers": [1, 0]}),
    "gemma-3-text": Family("Gemma3ForCausalLM", SHAPE | HEADS | SLIDING, GEMMA),
    "gemma-3": Family(
        "Gemma3ForConditionalGeneration",
        composite(SHAPE | HEADS | SLIDING, VISION, mm_tokens_per_image=4),
        GEMMA,
    ),
    "gemma-4": Family(
        "Gemma4ForConditionalGeneration",
        composite(GEMMA4_TEXT | {"hidden_size_per_layer_input": 0}, GEMMA4_VISION),
        GEMMA4,
    ),
    "gemma-4-e": Family(  # embeddings of every layer, and layers that share keys and values
        "Gemma4ForConditionalGeneration",
        composite(
            GEMMA4_TEXT
            | {"hidden_size_per_layer_input": 16, "num_kv_shared_layers": 2, "num_hidden_layers": 4}
            | {"layer_types": ["sliding_attention", "full_attention"] * 2},
            GEMMA4_VISION,
        ),
        GEMMA4,
    ),
    "phi-4": Family("Phi3ForCausalLM", SHAPE | UNTIED, PHI4),
    "gpt-oss": Family(
        "GptOssForCausalLM",
        SHAPE | HEADS | SLIDING | UNTIED | {"num_local_experts": 4, "num_experts_per_tok": 2},
        HARMONY,
        refused="GptOssForCausalLM",
    ),
    "glm-4": Family("Glm4ForCausalLM", SHAPE | HEADS | UNTIED, GLM4),
    "glm-4.5": Family(
        "Glm4MoeForCausalLM",
        SHAPE
        | HEADS
        | UNTIED
        | {"moe_intermediate_size": 64, "n_routed_experts": 4, "num_experts_per_tok": 2}
        | {"use_qk_norm": True},
        GLM4,
    ),
    "olmo-3": Family("Olmo3ForCausalLM", SHAPE | SLIDING | UNTIED),
    "granite-4": Family(
        "GraniteMoeHybridForCausalLM",
        SHAPE
        | TIED
        | {"layer_types": ["mamba", "attention"], "num_local_experts": 0, "shared_intermediate_size": 64}
        | {"mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 16, "position_embedding_type": "nope"}
        | {"logits_scaling": 4.0, "embedding_multiplier": 6.0, "residual_multiplier": 0.25},
        GRANITE,
    ),
    "granite-4-dense": Family(
        "GraniteMoeHybridForCausalLM",
        SHAPE
        | TIED
        | {"layer_types": ["attention"] * 2, "num_local_experts": 0, "shared_intermediate_size": 64}
        | {"position_embedding_type": "rope", "attention_multiplier": 0.125}
        | {"logits_scaling": 4.0, "embedding_multiplier": 6.0, "residual_multiplier": 0.25},
        GRANITE,
    ),
    "lfm2": Family(
        "Lfm2ForCausalLM",
        SHAPE
        | TIED
        | {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}
        | dict.fromkeys(("conv_dim", "conv_dim_out", "block_dim"), HIDDEN),
        LFM2,
        refused="short convolution",
    ),
    "ministral-3": Family(
        "Mistral3ForConditionalGeneration",
        composite(
            SHAPE | HEADS | TIED | {"model_type": "ministral3"},
            VISION | {"head_dim": 8, "model_type": "pixtral"},
            **TIED,
        ),
        MISTRAL,
    ),
}


def write_published(name: str, folder: Path) -> Path:
    """The checkpoint of a family as a folder."""
    family = FAMILIES[name]
    tokenizer = chat_tokenizer(family.template.text, family.template.marks)
    ids = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    ids |= {"pad_token_id": tokenizer.pad_token_id}
    settings = dict(family.settings)
    if "text_config" in settings:
        settings["text_config"] = settings["text_config"] | ids
        if name.startswith("gemma-4"):
            settings["text_config"]["vocab_size_per_layer_input"] = len(tokenizer)
    else:
        settings |= ids
    kind = getattr(transformers, family.architecture)
    torch.manual_seed(0)
    model = kind(kind.config_class(**settings)).float().eval()
    with torch.no_grad():  # as large as trained ones, so that a wrong one shows
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if family.beside:
        file = folder / "model.safetensors"
        save_file(
            load_file(file) | {n: torch.ones(s) for n, s in family.beside.items()}, file, {"format": "pt"}
        )
    return folder


def architecture(folder: Path) -> str:
    """The class that a folder's configuration names."""
    found: str = json.loads((folder / "config.json").read_text())["architectures"][0]
    return found
