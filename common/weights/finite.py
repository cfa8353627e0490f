"""Weights that are no numbers: a model with one is found when it is loaded, and not by its first loss."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from hora_rl.common.errors import ConfigError


def not_finite(tensors: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
    """Names of those that hold NaN or an infinite value. Each is read once, where it lies."""
    return [
        name
        for name, tensor in tensors
        if tensor.is_floating_point() and tensor.numel() and not _finite(tensor.detach())
    ]


def _finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(torch.stack(tensor.aminmax())).all())  # NaN is the least and the largest


def refuse_not_finite(names: list[str], path: str) -> None:
    """Raise ConfigError for a model at `path` that has such tensors."""
    if names:
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        raise ConfigError(
            f"model.path ({path}): {names[0]}{more} holds NaN or infinite values: copy the model again, or "
            "train from an earlier checkpoint"
        )
