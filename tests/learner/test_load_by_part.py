"""A model that ZeRO-3 loads by part is that of `from_pretrained`: its buffers, and which files it reads."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from hora_rl.common.config import Config
from hora_rl.common.load import load
from hora_rl.learner.model.loading import _Files, _misfit, skeleton
from tests.support.families import SETTINGS, model_of

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
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
