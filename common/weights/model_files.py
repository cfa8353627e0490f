"""A model's own configuration, and recognising it by its weight files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from hora_rl.common.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from hora_rl.common.config import Model

PROBE_BYTES = 2**20
ORIGIN = "hora.json"
"""In an exported folder: the run and the step that it comes from, and an adapter's base."""


def own_configuration(model: Model) -> PreTrainedConfig:
    """The configuration in `model.path`. Raises ConfigError for values that no model has, and OSError or
    ValueError where there is none."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    path = model.path
    try:
        found: PreTrainedConfig = AutoConfig.from_pretrained(path, trust_remote_code=model.trust_remote_code)
    except StrictDataclassError as error:
        raise ConfigError(f"{path}/config.json: {' '.join(str(error).split())[:300]}") from None
    return found


def weights_digest(folder: Path) -> str | None:
    """16 hex digits that change when a model folder is trained or replaced; None for a hub name.

    Of the names, sizes, first and last mebibyte of its weight files: 15 GB are not read to be recognised.
    """
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]) if folder.is_dir() else []
    if not files:
        return None
    digest = hashlib.blake2b(digest_size=8)
    for path in files:
        digest.update(f"{path.name}:{path.stat().st_size};".encode() + probe(path))
    return digest.hexdigest()


def probe(path: Path) -> bytes:
    """The first and the last mebibyte of a file, which overlap in a small one."""
    with path.open("rb") as file:
        first = file.read(PROBE_BYTES)
        file.seek(max(0, path.stat().st_size - PROBE_BYTES))
        return first + file.read(PROBE_BYTES)
