"""Finds NaN and infinite weights when a model is loaded, not at its first loss."""

from collections.abc import Iterable

import torch

from hora_rl.common.errors import ConfigError


def not_finite(tensors: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
    """Names of tensors with NaN or infinite values. Reads each tensor once, on its device."""
    return [
        name
        for name, tensor in tensors
        if tensor.is_floating_point()
        and tensor.numel()
        and not torch.isfinite(torch.stack(tensor.detach().aminmax())).all()  # aminmax propagates NaN
    ]


def refuse_not_finite(names: list[str], path: str) -> None:
    """Raise ConfigError if the model at `path` has such tensors."""
    if names:
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        raise ConfigError(
            f"model.path ({path}): {names[0]}{more} holds NaN or infinite values: copy the model again, or "
            "train from an earlier checkpoint"
        )
