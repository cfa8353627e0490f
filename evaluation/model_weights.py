"""A fingerprint of a model's weights: two paths may hold equal weights, and one path may change."""

from pathlib import Path

from hora_rl.common.model.model_files import weights_digest


def model_digest(model: str) -> str:
    """`weights_digest` of a folder or a cached hub model; empty if unknown."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if Path(model).is_dir():
        return weights_digest(Path(model)) or ""
    try:
        found = try_to_load_from_cache(model, "config.json")
    except HFValidationError:
        return ""
    return (weights_digest(Path(found).parent) or "") if isinstance(found, str) else ""
