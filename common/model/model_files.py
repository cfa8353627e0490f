"""A model's configuration, its text part, a fingerprint of its weight files, and weights that are not finite.

HORA trains and samples text alone. Of a model that is published with more, such as a vision tower, learner
and engine hold the family's text-only class, so they share its parameter names, and an exported model is of
that class. Only the files have the names of the whole model."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from hora_rl.common.errors import ConfigError, one_line

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

    from hora_rl.common.config import ModelConfig


RENAMED = {
    r"^(?:model\.)?(?:language_model|text_model)\.lm_head\.": "lm_head.",
    r"^language_model\.model\.": "model.",
    r"^model\.(?:language_model|text_model)\.": "model.",
}
"""Where text parameters are in the files of a whole model, and their names in the text-only class."""
HEAD = "lm_head."
OWN = re.compile(r"model\.(?:layers|embed_tokens|norm)\.")
"""Text parameters of older files, which have the text-only class's names beside those of other parts."""
AS_TEXT = {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}
"""Types of text parts without a text-only class, and the type that computes the same on text: there the three
positions of a token are equal, so sections of rotary frequencies have no effect."""
SECTIONS = ("mrope_section", "mrope_interleaved")
PROBE_BYTES = 2**20
ORIGIN = "hora.json"
"""File in an exported folder: its run and step, and an adapter's base."""


def text_part(config: PreTrainedConfig) -> PreTrainedConfig:
    """The configuration of the text part of `config`, with the name of its class; `config` itself if it is a
    text model. Raises ConfigError if transformers has no text-only class of this family."""
    from transformers import PreTrainedConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    text = getattr(config, "text_config", None)
    if not isinstance(text, PreTrainedConfig):
        return config
    if text.model_type in AS_TEXT:
        text = _as_text(text)
    family = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(text.model_type)
    if family is None:
        names = ", ".join(config.architectures or [type(config).__name__])
        raise ConfigError(
            f"{config.name_or_path}: {names} has a text part of type {text.model_type}, and transformers, "
            "with which the learner trains, has no text-only class of that type: use another model"
        )
    text.architectures, text.name_or_path = [family], str(config.name_or_path)
    if getattr(config, "tie_word_embeddings", False) and not text.tie_word_embeddings:
        # Two sections contradict each other, often by a default alone: the files know.
        text.tie_word_embeddings = not _holds_head(Path(str(config.name_or_path)))
    if (quantization := getattr(config, "quantization_config", None)) is not None:
        text.quantization_config = quantization
    return text


def _as_text(text: PreTrainedConfig) -> PreTrainedConfig:
    """The same settings as those of a family that has a text-only class."""
    from transformers import AutoConfig

    settings = {name: value for name, value in text.to_dict().items() if name != "model_type"}
    rope = {name: value for name, value in settings["rope_parameters"].items() if name not in SECTIONS}
    if rope.get("rope_type") == "mrope":
        rope["rope_type"] = "default"
    made: PreTrainedConfig = AutoConfig.for_model(
        AS_TEXT[text.model_type], **settings | {"rope_parameters": rope}
    )
    return made


def _holds_head(folder: Path) -> bool:
    """Whether the safetensors in `folder` hold a head; True if there are none."""
    from safetensors import safe_open

    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.is_file():
        names = [*json.loads(index.read_bytes())["weight_map"]]
    elif single.is_file():
        with safe_open(single, framework="np") as file:
            names = [*file.keys()]
    else:
        return True
    return any((text_name(name) or "").startswith(HEAD) for name in names)


def text_name(name: str) -> str | None:
    """The text-only class's name of a tensor in the files of a whole model; None for another part's."""
    for pattern, replacement in RENAMED.items():
        renamed, count = re.subn(pattern, replacement, name)
        if count:
            return renamed
    return name if name.startswith(HEAD) or OWN.match(name) else None


def names_in_files(names: Iterable[str]) -> dict[str, str]:
    """The tensors of a model's files by the names of its parameters; only those of its text part."""
    renamed = {name: text_name(name) for name in names}
    if all(new in (None, name) for name, new in renamed.items()):
        return {name: name for name in renamed}
    return {new: name for name, new in renamed.items() if new is not None}


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
    """16 hex digits over names, sizes, first and last mebibyte of the weight files, that change when a model
    folder is trained or replaced; None for a hub name."""
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
