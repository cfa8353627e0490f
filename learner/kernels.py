"""Liger's Triton kernels instead of the model's RMSNorm, SwiGLU and rotary embedding.

The head stays the learner's (learner/head.py). Liger's fused linear log-prob returns log-probs per token and
entropy, but only for bfloat16 on Hopper is it a kernel. Elsewhere it adds the chunks' gradients of the head
in 16 bits, and supports neither a bias nor scaled logits.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from hora_rl.common.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel

FAMILIES = ("granite", "llama", "mistral", "phi3", "qwen2", "qwen3")
"""Families whose log-probs and gradients with Liger's kernels match torch."""
SILU = ("silu", "swish")


def check_liger_family(model: PreTrainedConfig) -> None:
    """Raise ConfigError for a model that Liger does not patch, or patches with another activation."""
    kind, activation = model.model_type, getattr(model, "hidden_act", None)
    if kind not in FAMILIES or activation not in SILU:
        raise ConfigError(
            f"learner.kernels (liger): for {', '.join(FAMILIES)} with {SILU[0]}; the model is {kind} with "
            f"{activation}; set learner.kernels: torch"
        )


def check_liger_here(*, cards: bool) -> None:
    """Raise ConfigError if the package or a GPU is missing."""
    if find_spec("liger_kernel") is None:
        raise ConfigError(
            "learner.kernels (liger): the package liger-kernel is not installed; make setup HORA_SET=gpu "
            "installs it, or set learner.kernels: torch"
        )
    if not cards:
        raise ConfigError(
            "learner.kernels (liger): its kernels run on GPUs, and this machine has none that torch can use; "
            "set learner.kernels: torch"
        )


def use_liger(hf: PreTrainedModel, device: torch.device) -> None:
    """Patch `hf`, and every later model of its family in this process, with Liger's kernels. Raises
    ConfigError if that is impossible."""
    check_liger_family(hf.config)
    check_liger_here(cards=device.type == "cuda")
    from liger_kernel.backends import set_impl
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    set_impl("nvidia-triton")  # else Liger chooses by the card
    MODEL_TYPE_TO_APPLY_LIGER_FN[hf.config.model_type](
        model=hf,
        rope=True,
        rms_norm=True,
        swiglu=True,
        cross_entropy=False,
        fused_linear_cross_entropy=False,
    )
