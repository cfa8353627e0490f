"""Which weights a model is: two paths may hold the same, and one path others than yesterday."""

from __future__ import annotations

from pathlib import Path

from hora_rl.common.weights.model_files import weights_digest


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
