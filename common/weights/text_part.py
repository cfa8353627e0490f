"""The text part of a model that is published with more, such as a vision tower or a multi-token predictor.

HORA trains and samples text alone. Learner and engine hold the family's text-only class, so they share its
parameter names, and an exported model is of that class. Only the files have the names of the whole model.
"""

from __future__ import annotations

import re
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


def text_part(whole: PreTrainedConfig) -> PreTrainedConfig:
    """The configuration of the text part of `whole`, with the name of its class; `whole` itself if it is a
    text model. Raises ConfigError if transformers has no text-only class of this family."""
    from transformers import PreTrainedConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    text = getattr(whole, "text_config", None)
    if not isinstance(text, PreTrainedConfig):
        return whole
    family = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(text.model_type)
    if family is None:
        names = ", ".join(whole.architectures or [type(whole).__name__])
        raise ConfigError(
            f"{whole.name_or_path}: {names} has a text part of type {text.model_type}, and transformers, "
            "with which the learner trains, has no text-only class of that type: use another model"
        )
    text.architectures, text.name_or_path = [family], str(whole.name_or_path)
    if (quantization := getattr(whole, "quantization_config", None)) is not None:
        text.quantization_config = quantization
    return text


def text_name(name: str) -> str | None:
    """The text-only class's name of the tensor `name` in the files of a whole model; None for another
    part's."""
    for pattern, own in RENAMED.items():
        renamed, found = re.subn(pattern, own, name)
        if found:
            return renamed
    return name if name.startswith(HEAD) else None
