"""Compiles the policy's decoder layers and the head's arithmetic on a card: eager layers spend a fifth of a
step on element-wise kernels that read and write all activations.

All layers of a family share one compilation for each kind of call (mask or none, gradient or none, one row or
several). The eager path stays the reference: `check_agreement` scores with it. torch warns where it cannot
compile a layer, and runs that eagerly.
"""

from __future__ import annotations

import torch

from hora_rl.learner.model.flops import EXPERTS
from hora_rl.learner.model.head import log_probs, scored
from hora_rl.learner.model.logprobs import Policy

VARIANTS = 64
"""Compilations of one function before torch runs it eagerly; its own limit is 8, as many as a layer has kinds
of call."""


def compile_policy(policy: Policy, backend: str = "inductor") -> None:
    """Compile layers and head of `policy` in place, for any number of rows and tokens. Experts are left
    alone: how many tokens each gets is known only on the device. Not under ZeRO-3, whose hooks gather
    parameters inside the layers."""
    from torch._dynamo import config
    from torch.fx.experimental import _config as shapes
    from transformers.modeling_layers import GradientCheckpointingLayer

    config.recompile_limit, config.suppress_errors = VARIANTS, True
    shapes.use_duck_shape = False  # else a width that equals another size would be compiled again
    policy.head.scored = torch.compile(scored, dynamic=True, backend=backend)
    policy.head.log_probs = torch.compile(log_probs, dynamic=True, backend=backend)
    if any(getattr(policy.hf.config.get_text_config(), key, None) for key in EXPERTS):
        return
    for module in policy.hf.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.compile(dynamic=True, backend=backend)
