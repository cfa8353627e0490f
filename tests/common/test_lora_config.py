"""What of a LoRA configuration cannot work is one line with both values, before anything starts."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hora_rl.common.config import Lora
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load
from hora_rl.common.weights.adapter_names import SETTINGS, WEIGHTS, parts_of, published_name
from hora_rl.common.weights.adapters import check_base, model_settings
from hora_rl.common.weights.model_files import ORIGIN

MODEL = load("tiny").model.path


@pytest.mark.parametrize(("rank", "served"), [(1, 1), (2, 8), (8, 8), (20, 32), (300, 320), (512, 512)])
def test_the_rank_is_rounded_up_to_one_that_vllm_has(rank: int, served: int) -> None:
    assert Lora(rank=rank).served_rank == served


def test_names_are_those_of_an_adapters_file() -> None:
    name = published_name("model.layers.3.self_attn.q_proj.lora_A.default.weight")
    assert name == "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight"
    assert parts_of(name) == ("model.layers.3.self_attn.q_proj", "A")
    with pytest.raises(ValueError, match="is no parameter of a LoRA adapter"):
        published_name("model.layers.3.self_attn.q_proj.base_layer.weight")


def adapter(
    folder: Path, base: str = MODEL, base_weights: str | None = None, without: str = "", **settings: object
) -> Path:
    folder.mkdir()
    about = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "base_model_name_or_path": base, **settings}
    (folder / SETTINGS).write_text(json.dumps(about))
    save_file({"a": torch.zeros(1)}, folder / WEIGHTS)
    if base_weights is not None:
        (folder / ORIGIN).write_text(json.dumps({"run": "r", "step": 3, "base_weights": base_weights}))
    if without:
        (folder / without).unlink()
    return folder


def test_an_adapters_folder_brings_its_base(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "a")
    config = load("tiny", ["learner.lora.rank=4", *model_settings(str(folder))])
    assert (config.model.path, config.model.adapter, config.learner.lora) == (MODEL, str(folder), None)
    check_base(config.model)
    config = load("tiny", [f"model.adapter={folder}", *model_settings(MODEL)])
    assert (config.model.path, config.model.adapter) == (MODEL, None)


@pytest.mark.parametrize(
    ("made", "line"),
    [
        ({"base": "Qwen/Qwen2.5-7B"}, r"its base is Qwen/Qwen2.5-7B, and model.path is .*demo/model"),
        ({"base_weights": "0123456789abcdef"}, r"had weights 0123456789abcdef, and those of model.path .*"),
        ({"use_dora": True}, "vLLM serves plain LoRA alone, not use_dora"),
        ({"peft_type": "IA3"}, "plain LoRA alone, not IA3"),
        ({"r": 1024}, "its rank 1024 exceeds 512"),
        ({"r": "many"}, "cannot be used"),
        ({"without": SETTINGS}, "holds no adapter_config.json, so it is no adapter"),
        ({"without": WEIGHTS}, "holds no adapter_model.safetensors"),
    ],
)
def test_an_adapter_of_another_base_or_kind_or_none_is_refused(
    tmp_path: Path, made: dict[str, object], line: str
) -> None:
    folder = adapter(tmp_path / "a", **made)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=line):
        check_base(load("tiny", [f"model.adapter={folder}"]).model)
