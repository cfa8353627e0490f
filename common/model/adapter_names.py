"""Names and files of a LoRA adapter, as peft writes them and vLLM reads them."""

import re

PREFIX = "base_model.model."
WEIGHTS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"
PARAMETER = re.compile(r"^(?P<module>.+)\.lora_(?P<part>[AB])\.\w+\.weight$")
PUBLISHED = re.compile(rf"^{re.escape(PREFIX)}(?P<module>.+)\.lora_(?P<part>[AB])\.weight$")


def published_name(parameter: str) -> str:
    """The name in an adapter's file of a parameter that peft added to a model."""
    found = PARAMETER.match(parameter)
    if found is None:
        raise ValueError(f"{parameter} is no parameter of a LoRA adapter")
    return f"{PREFIX}{found['module']}.lora_{found['part']}.weight"


def parts_of(name: str) -> tuple[str, str]:
    """(layer name, A or B) of a tensor in an adapter's file. Raises ValueError for any other tensor."""
    found = PUBLISHED.match(name)
    if found is None:
        raise ValueError(f"{name} is no tensor of a LoRA adapter")
    return found["module"], found["part"]
