"""LoRA adapters: names and files as peft writes them and vLLM reads them; an adapter's folder, checked
against its base model."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from hora_rl.common.config import ModelConfig
from hora_rl.common.config.learner import VLLM_RANKS
from hora_rl.common.errors import ConfigError
from hora_rl.common.files import text_override
from hora_rl.common.model.model_files import ORIGIN, weights_digest

PREFIX = "base_model.model."
WEIGHTS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"
PARAMETER = re.compile(r"^(?P<module>.+)\.lora_(?P<part>[AB])\.\w+\.weight$")
PUBLISHED = re.compile(rf"^{re.escape(PREFIX)}(?P<module>.+)\.lora_(?P<part>[AB])\.weight$")


def published_name(parameter: str) -> str:
    """The name in an adapter's file of a parameter that peft added to a model."""
    match = PARAMETER.match(parameter)
    if match is None:
        raise ValueError(f"{parameter} is no parameter of a LoRA adapter")
    return f"{PREFIX}{match['module']}.lora_{match['part']}.weight"


def parts_of(name: str) -> tuple[str, str]:
    """(layer name, A or B) of a tensor in an adapter's file. Raises ValueError for any other tensor."""
    match = PUBLISHED.match(name)
    if match is None:
        raise ValueError(f"{name} is no tensor of a LoRA adapter")
    return match["module"], match["part"]


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    """`base`: path or hub name; `base_weights`: the digest of its files, None if not recorded."""

    path: Path
    base: str
    base_weights: str | None
    settings: dict[str, object]

    @property
    def rank(self) -> int:
        return int(str(self.settings["r"]))


def read_adapter(folder: str) -> AdapterFolder:
    """The adapter in `folder`. Raises ConfigError if vLLM cannot serve it."""
    path = Path(folder)
    try:
        settings = json.loads((path / SETTINGS).read_text())
        rank, base = int(settings["r"]), str(settings["base_model_name_or_path"])
        noted = json.loads((path / ORIGIN).read_text()) if (path / ORIGIN).is_file() else {}
    except FileNotFoundError:
        raise ConfigError(f"model.adapter ({folder}): holds no {SETTINGS}, so it is no adapter") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"model.adapter ({folder}): {SETTINGS} cannot be used ({error!r})") from None
    if not (path / WEIGHTS).is_file():
        raise ConfigError(f"model.adapter ({folder}): holds no {WEIGHTS}")
    unserved = [k for k in ("use_dora", "lora_bias", "modules_to_save") if settings.get(k)]
    if settings.get("peft_type") != "LORA" or settings.get("bias", "none") != "none" or unserved:
        what = ", ".join(unserved) or f"{settings.get('peft_type')}, bias {settings.get('bias')}"
        raise ConfigError(
            f"model.adapter ({folder}): vLLM serves plain LoRA alone, not {what}; merge it into its base"
        )
    if rank > VLLM_RANKS[-1]:
        too_large = f"its rank {rank} exceeds {VLLM_RANKS[-1]}, the largest that vLLM serves"
        raise ConfigError(f"model.adapter ({folder}): {too_large}; merge it into its base")
    return AdapterFolder(path, base, noted.get("base_weights"), settings)


def check_base(model: ModelConfig) -> None:
    """Raise ConfigError if `model.adapter` was trained on another base than `model.path`."""
    if model.adapter is None:
        return
    adapter, here = read_adapter(model.adapter), model.path
    digest = weights_digest(Path(here))
    if adapter.base_weights is not None and digest is not None:
        if adapter.base_weights != digest:
            raise ConfigError(
                f"model.adapter ({adapter.path}): its base {adapter.base} had weights "
                f"{adapter.base_weights}, and those of model.path ({here}) are {digest}: name its base"
            )
    elif adapter.base != here and Path(adapter.base).resolve() != Path(here).resolve():
        raise ConfigError(
            f"model.adapter ({adapter.path}): its base is {adapter.base}, and model.path is {here}: set "
            f"model.path={adapter.base}"
        )


def refuse_to_train(model: ModelConfig) -> None:
    """Raise ConfigError if a training run starts from an adapter."""
    if model.adapter is not None:
        raise ConfigError(
            f"model.adapter ({model.adapter}) is for `hora eval` and `hora plan`: training starts "
            "from a whole model; merge it into its base and name that in model.path"
        )


def model_settings(model: str) -> list[str]:
    """Overrides that select `model`: a model's folder or hub name, or an adapter's folder with its base."""
    if not (Path(model) / SETTINGS).is_file():
        return [text_override("model.path", model), "model.adapter=null", "learner.lora=null"]
    base = text_override("model.path", read_adapter(model).base)
    return [base, text_override("model.adapter", model), "learner.lora=null"]
