"""Liger's Triton kernels in place of the model's own RMSNorm, SwiGLU and rotary embedding.

The head stays the learner's own (learner/head.py). Liger's fused linear log-prob returns what the loss needs,
per token and with entropy, but only for bfloat16 on Hopper is it a kernel. Elsewhere it adds the chunks'
gradients of the head in 16 bits, and it knows neither a bias nor logits that a family scales.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from hora_rl.common.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel

FAMILIES = ("granite", "llama", "mistral", "phi3", "qwen2", "qwen3")
"""Whose log-probs and gradients with Liger's kernels are those of torch."""
SILU = ("silu", "swish")


def check_liger_family(model: PreTrainedConfig) -> None:
    """Raise ConfigError for a model that Liger would leave alone, or compute with another activation."""
    kind, activation = model.model_type, getattr(model, "hidden_act", None)
    if kind not in FAMILIES or activation not in SILU:
        raise ConfigError(
            f"learner.kernels (liger): for {', '.join(FAMILIES)} with {SILU[0]}; the model is {kind} with "
            f"{activation}; set learner.kernels: torch"
        )


def check_liger_here(*, cards: bool) -> None:
    """Raise ConfigError where the package, or a GPU to run it on, is missing."""
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
    """Give `hf`, and every later model of its family in this process, Liger's kernels. Raises ConfigError
    where that cannot be."""
    check_liger_family(hf.config)
    check_liger_here(cards=device.type == "cuda")
    from liger_kernel.backends import set_impl
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    set_impl("nvidia-triton")  # of several that Liger would choose from by the card
    MODEL_TYPE_TO_APPLY_LIGER_FN[hf.config.model_type](
        model=hf,
        rope=True,
        rms_norm=True,
        swiglu=True,
        cross_entropy=False,
        fused_linear_cross_entropy=False,
    )
