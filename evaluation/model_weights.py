"""Which weights a model is: two paths may hold the same, and one path others than yesterday."""

from __future__ import annotations

import hashlib
from pathlib import Path

PROBE_BYTES = 2**20


def model_digest(model: str) -> str:
    """`weights_digest` of a folder, or of a hub model in this machine's cache; empty where unknown."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if Path(model).is_dir():
        return weights_digest(Path(model)) or ""
    try:
        found = try_to_load_from_cache(model, "config.json")
    except HFValidationError:
        return ""
    return (weights_digest(Path(found).parent) or "") if isinstance(found, str) else ""


def weights_digest(folder: Path) -> str | None:
    """16 hex digits that change when a model folder is trained or replaced; None for a hub name.

    Of the names, sizes, first and last mebibyte of its weight files: 15 GB are not read to be recognised.
    """
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]) if folder.is_dir() else []
    if not files:
        return None
    digest = hashlib.blake2b(digest_size=8)
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name}:{size};".encode())
        with path.open("rb") as file:
            digest.update(file.read(PROBE_BYTES))
            file.seek(max(0, size - PROBE_BYTES))
            digest.update(file.read(PROBE_BYTES))
    return digest.hexdigest()
