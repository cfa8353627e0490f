"""A loader of model files that refuses NaN and infinite weights. Only the loader still knows the tensor's
name in the file: vLLM later merges tensors, and packs them on a CPU."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import torch
from torch import nn
from vllm.config import ModelConfig
from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from hora_rl.common.weights.finite import not_finite, refuse_not_finite


class FiniteLoader(DefaultModelLoader):
    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(replace(load_config, load_format="auto"))

    def get_all_weights(
        self, model_config: ModelConfig, model: nn.Module
    ) -> Generator[tuple[str, torch.Tensor], None, None]:
        """Raises ConfigError at the first tensor with NaN or an infinite value."""
        for name, tensor in super().get_all_weights(model_config, model):
            refuse_not_finite(not_finite([(name, tensor)]), model_config.model)
            yield name, tensor
