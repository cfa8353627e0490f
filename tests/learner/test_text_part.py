"""Of a model that holds more than text the text part is read, and it has the whole model's logits. A
model that ZeRO-3 loads by part is that of `from_pretrained`: its buffers, and which files it reads."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, Glm4vConfig

from hora_rl.common.config import Config
from hora_rl.common.data.prompts import load_tokenizer
from hora_rl.common.data.special_tokens import stop_tokens
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load
from hora_rl.common.model.model_files import own_configuration, text_name
from hora_rl.deploy.checks.findings import Target
from hora_rl.deploy.checks.memory import estimate_of
from hora_rl.deploy.checks.weight_files import weight_files
from hora_rl.learner.model.loading import _Files, _misfit, load_model, skeleton
from hora_rl.learner.weights.host_copy import differ
from tests.support.families import SETTINGS, model_of
from tests.support.published import FAMILIES, write_published

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
WHOLE = sorted(name for name, family in FAMILIES.items() if "text_config" in family.settings)


def config_of(folder: Path) -> Config:
    return load("tiny", [f"model.path={folder}"])


@pytest.mark.parametrize("family", WHOLE)
def test_the_text_part_computes_what_the_whole_model_does(tmp_path: Path, family: str) -> None:
    config = config_of(write_published(family, tmp_path))
    part = load_model(config.model, config.learner)
    full = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float32).eval()
    ids = torch.arange(5, 45)[None]
    with torch.no_grad():
        assert torch.equal(part(input_ids=ids).logits, full(input_ids=ids).logits)
    assert sum(p.numel() for p in part.parameters()) < sum(p.numel() for p in full.parameters())
    read = {text_name(name) for name in load_file(tmp_path / "model.safetensors")}  # as an engine does
    names = {name for name, _ in part.named_parameters() if "experts" not in name}  # those are stacked
    assert names <= read | {"lm_head.weight"}
    assert [f.level for f in weight_files(Target(config))] == ["ok"]
    estimate = estimate_of(config)
    assert estimate is not None
    assert estimate.shape.parameters == sum(p.numel() for p in part.parameters())


@pytest.mark.parametrize("family", ["gemma-3", "qwen3.5", "ministral-3"])
def test_zero_3_reads_it_from_the_files_by_part(tmp_path: Path, family: str) -> None:
    config = config_of(write_published(family, tmp_path))
    made, files = skeleton(config.model, torch.float32), _Files(str(tmp_path))
    assert _misfit(made, files, torch.float32) == ""
    full = load_model(config.model, config.learner)
    assert not differ(full)
    assert all(torch.equal(files.read(name), p) for name, p in full.named_parameters())


def test_text_settings_beside_those_of_the_whole_are_read_too(tmp_path: Path) -> None:
    """As in the files of Qwen2.5-VL, which are older than `text_config`."""
    folder = write_published("qwen2.5-vl", tmp_path)
    before = load_model(config_of(folder).model, config_of(folder).learner)
    full = json.loads((folder / "config.json").read_text())
    text = {k: v for k, v in full.pop("text_config").items() if k not in ("model_type", "rope_parameters")}
    rope = {"rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]}, "rope_theta": 1e6}
    (folder / "config.json").write_text(json.dumps(text | full | rope))
    after = load_model(config_of(folder).model, config_of(folder).learner)
    ids = torch.arange(5, 45)[None]
    assert torch.equal(after(input_ids=ids).logits, before(input_ids=ids).logits)


def test_a_missing_tensor_of_the_text_part_is_named(tmp_path: Path) -> None:
    config, file = config_of(write_published("gemma-3", tmp_path)), tmp_path / "model.safetensors"
    tensors = load_file(file)
    del tensors["language_model.model.norm.weight"]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(ConfigError, match=r"no file holds model\.norm\.weight"):
        list(weight_files(Target(config)))


@pytest.mark.parametrize("head", [True, False])
def test_the_files_decide_where_sections_contradict_each_other_about_a_tied_head(
    tmp_path: Path, head: bool
) -> None:
    config, file = config_of(write_published("ministral-3", tmp_path)), tmp_path / "config.json"
    settings = json.loads(file.read_text())
    settings["text_config"]["tie_word_embeddings"] = False
    file.write_text(json.dumps(settings))
    if head:
        weights = load_file(tmp_path / "model.safetensors")
        more = {"language_model.lm_head.weight": torch.randn(len(load_tokenizer(str(tmp_path))), 128)}
        save_file(weights | more, tmp_path / "model.safetensors", {"format": "pt"})
    assert own_configuration(config.model).tie_word_embeddings is not head
    assert [f.level for f in weight_files(Target(config))] == ["ok"]


def test_its_end_token_is_a_stop(tmp_path: Path) -> None:
    config = config_of(write_published("qwen3.5", tmp_path))
    (tmp_path / "generation_config.json").unlink()
    file = tmp_path / "config.json"
    settings = json.loads(file.read_text())
    settings["text_config"]["eos_token_id"] = 7
    file.write_text(json.dumps(settings))
    assert 7 in stop_tokens(config, load_tokenizer(str(tmp_path)))


def test_a_whole_model_without_a_text_only_class_is_refused_by_name(tmp_path: Path) -> None:
    made = Glm4vConfig(architectures=["Glm4vForConditionalGeneration"])
    made.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"Glm4vForConditionalGeneration.*transformers") as refused:
        own_configuration(config_of(tmp_path).model)
    assert "\n" not in str(refused.value)


DTYPE = torch.bfloat16


def written(family: str, folder: Path) -> Config:
    model_of(family).save_pretrained(folder)
    return load("tiny", [f"model.path={folder}", "model.dtype=bfloat16"])


def misfit(config: Config) -> str:
    return _misfit(skeleton(config.model, DTYPE), _Files(config.model.path), DTYPE)


@pytest.mark.parametrize("family", sorted(SETTINGS))
def test_buffers_are_those_of_from_pretrained_and_parameters_on_meta_too(family: str, tmp_path: Path) -> None:
    config = written(family, tmp_path)
    full = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=DTYPE)
    made = skeleton(config.model, DTYPE)
    assert all(p.is_meta and p.dtype == DTYPE for p in made.parameters())
    assert [n for n, _ in made.named_parameters()] == [n for n, _ in full.named_parameters()]
    result, wanted = dict(made.named_buffers()), dict(full.named_buffers())
    assert result.keys() == wanted.keys()
    for name, buffer in wanted.items():
        assert result[name].dtype == buffer.dtype, name
        assert torch.equal(result[name], buffer), name
        if "inv_freq" in name:
            assert buffer.dtype == torch.float32
    other_name = "embed_out.weight of its files is no parameter's name"
    assert misfit(config) == (other_name if family == "gpt_neox" else "")


FIRST = "model.layers.0.mlp.up_proj.weight"
CHANGES: dict[str, Callable[[torch.Tensor], dict[str, torch.Tensor]]] = {
    "old.name of its files is no parameter's name": lambda t: {FIRST: t, "old.name": t.clone()},
    f"{FIRST} has another shape in its files": lambda t: {FIRST: t[:3].contiguous()},
    f"{FIRST} is not in its files": lambda t: {},
}


@pytest.mark.parametrize("reason", CHANGES)
def test_files_that_from_pretrained_would_convert_are_not_read_by_part(tmp_path: Path, reason: str) -> None:
    config, file = written("qwen2", tmp_path), tmp_path / "model.safetensors"
    tensors = load_file(file)
    changed = CHANGES[reason](tensors.pop(FIRST))
    save_file({**tensors, **changed}, file, {"format": "pt"})
    assert misfit(config) == reason


def test_a_tied_weight_that_is_there_twice_is_not_read_by_part(tmp_path: Path) -> None:
    config, file = written("qwen2", tmp_path), tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "tie_word_embeddings": True}))
    assert "are both in its files" in misfit(config)


def test_weights_in_several_files_are_found_by_their_index(tmp_path: Path) -> None:
    model = model_of("llama")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    config = load("tiny", [f"model.path={tmp_path}", "model.dtype=bfloat16"])
    assert misfit(config) == ""
    files = _Files(str(tmp_path))
    assert all(torch.equal(files.read(name), p) for name, p in model.named_parameters())
