"""A model's configuration, a fingerprint of its weight files, and weights that are not finite."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from hora_rl.common.errors import ConfigError, one_line
from hora_rl.common.model.text_part import text_part

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

    from hora_rl.common.config import ModelConfig

PROBE_BYTES = 2**20
ORIGIN = "hora.json"
"""File in an exported folder: its run and step, and an adapter's base."""


def own_configuration(model: ModelConfig) -> PreTrainedConfig:
    """The configuration in `model.path`, of a model that holds more than text its text part's. Raises
    ConfigError if invalid or not text, OSError or ValueError if missing."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    path = model.path
    try:
        configuration: PreTrainedConfig = AutoConfig.from_pretrained(
            path, trust_remote_code=model.trust_remote_code
        )
    except StrictDataclassError as error:
        raise ConfigError(f"{path}/config.json: {one_line(error)}") from None
    return text_part(configuration)


def vocabulary_rows(model: ModelConfig) -> int:
    """The number of tokens that the model of `model.path` has rows for. Raises ConfigError."""
    try:
        return int(own_configuration(model).get_text_config().vocab_size)
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.path ({model.path}): {one_line(error)}") from None


def weights_digest(folder: Path) -> str | None:
    """16 hex digits that change when a model folder is trained or replaced; None for a hub name.

    Covers names, sizes, first and last mebibyte of the weight files, to avoid reading 15 GB."""
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]) if folder.is_dir() else []
    if not files:
        return None
    digest = hashlib.blake2b(digest_size=8)
    for path in files:
        digest.update(f"{path.name}:{path.stat().st_size};".encode() + probe(path))
    return digest.hexdigest()


def probe(path: Path) -> bytes:
    """The first and last mebibyte of a file; they overlap in a small one."""
    with path.open("rb") as file:
        first = file.read(PROBE_BYTES)
        file.seek(max(0, path.stat().st_size - PROBE_BYTES))
        return first + file.read(PROBE_BYTES)


def not_finite(tensors: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
    """Names of tensors with NaN or infinite values. Reads each tensor once, on its device."""
    import torch

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
