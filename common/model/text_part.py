"""The text part of a model that is published with more, such as a vision tower or a multi-token predictor.

HORA trains and samples text alone. Learner and engine hold the family's text-only class, so they share its
parameter names, and an exported model is of that class. Only the files have the names of the whole model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from hora_rl.common.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

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
    """The text-only class's name of the tensor `name` in the files of a whole model; None for a tensor of
    another part."""
    for pattern, replacement in RENAMED.items():
        renamed, count = re.subn(pattern, replacement, name)
        if count:
            return renamed
    return name if name.startswith(HEAD) or OWN.match(name) else None


def names_in_files(names: Iterable[str]) -> dict[str, str]:
    """The tensors of a model's files by the names of its parameters: of a model that holds more than text
    those of its text part."""
    renamed = {name: text_name(name) for name in names}
    if all(new in (None, name) for name, new in renamed.items()):
        return {name: name for name in renamed}
    return {new: name for name, new in renamed.items() if new is not None}
