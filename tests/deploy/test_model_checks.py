"""`hora check` finds a model's broken files by their headers, and names the file and the tensor. vLLM itself
says whether it takes the model and its arguments."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, MixtralConfig, MixtralForCausalLM

from hora_rl.common.errors import ConfigError
from hora_rl.common.load import ROOT, load
from hora_rl.deploy.checks import engine as checked
from hora_rl.deploy.checks.engine import EngineProcess, answer_file, engine
from hora_rl.deploy.checks.findings import Finding, Target
from hora_rl.deploy.checks.run_checks import examine
from hora_rl.deploy.checks.weight_files import INDEX, weight_files

UP = "model.layers.1.mlp.up_proj.weight"
pytestmark = pytest.mark.system  # it imports torch, transformers and vLLM


@pytest.fixture
def single(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "deploy/demo/model", tmp_path / "single"))


@pytest.fixture
def sharded(tmp_path: Path, single: Path) -> Path:
    folder = tmp_path / "sharded"
    AutoModelForCausalLM.from_pretrained(single).save_pretrained(folder, max_shard_size="1MB")
    AutoTokenizer.from_pretrained(single).save_pretrained(folder)
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder


def examined(folder: Path, *more: str) -> list[str]:
    target = Target(load("tiny", [f"model.path={folder}", *more]))
    return [finding.level for finding in weight_files(target)]


def refused(folder: Path, *words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        examined(folder)
    line = str(caught.value)
    assert "\n" not in line
    assert all(word in line for word in words), line


def test_whole_models_pass_in_one_file_in_several_and_by_converted_names(
    single: Path, sharded: Path, tmp_path: Path
) -> None:
    assert examined(single) == examined(sharded) == ["ok"]
    vocabulary = json.loads((single / "config.json").read_text())["vocab_size"]
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    experts = MixtralConfig(vocab_size=vocabulary, num_key_value_heads=2, num_local_experts=4, **shape)
    MixtralForCausalLM(experts).save_pretrained(tmp_path / "experts")
    AutoTokenizer.from_pretrained(single).save_pretrained(tmp_path / "experts")
    assert examined(tmp_path / "experts") == ["ok"]
    file = tmp_path / "experts" / "model.safetensors"
    changed(file, lambda tensors: tensors.pop(next(name for name in tensors if "experts.2" in name)))
    refused(tmp_path / "experts", "experts")


def changed(file: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw[:20] + b"\xff\xfe{{" + raw[24:],  # a damaged header
        lambda raw: (2**40).to_bytes(8, "little") + raw[8:],
        lambda raw: raw[:3000],  # cut within the tensors
        lambda raw: raw[:-64],  # a cut tail
        lambda raw: raw + b"0" * 64,
        lambda raw: b"",
    ],
)
def test_a_damaged_file_is_named(single: Path, change: Callable[[bytes], bytes]) -> None:
    file = single / "model.safetensors"
    file.write_bytes(change(file.read_bytes()))
    refused(single, str(file))


def test_a_tensor_that_is_missing_of_another_name_or_no_floating_point_number_is_named(single: Path) -> None:
    file = single / "model.safetensors"
    changed(file, lambda tensors: tensors.update({UP: tensors[UP].to(torch.int8)}))
    refused(single, str(file), UP, "I8")
    changed(file, lambda tensors: tensors.pop(UP))
    refused(single, UP)
    changed(file, lambda tensors: tensors.update(other=torch.zeros(3)))
    refused(single, UP, "other")


@pytest.mark.parametrize(
    ("key", "change", "named"),
    [
        ("hidden_size", lambda size: 2 * size, "model.safetensors"),
        ("vocab_size", lambda size: 2 * size, "model.safetensors"),
        ("intermediate_size", lambda size: 2 * size, "model.safetensors"),
        ("hidden_size", lambda size: size + 1, "single/config.json"),  # no model has it
    ],
)
def test_a_configuration_of_another_model_or_of_none_is_refused_with_its_shape(
    single: Path, key: str, change: Callable[[int], int], named: str
) -> None:
    settings = json.loads((single / "config.json").read_text())
    settings[key] = change(settings[key])
    (single / "config.json").write_text(json.dumps(settings))
    refused(single, named, "config.json", str(settings[key]))


def test_a_missing_shard_and_a_broken_index_are_named(sharded: Path) -> None:
    index, shards = sharded / INDEX, sorted(sharded.glob("*.safetensors"))
    text = index.read_text()
    places = json.loads(text)["weight_map"]
    name = next(name for name, file in places.items() if file == shards[0].name)
    entry, others = f'"{name}": "{shards[0].name}"', (shards[1].name, f"../{shards[0].name}")
    elsewhere, outside = (text.replace(entry, f'"{name}": "{place}"') for place in others)
    for broken in ("{", "[]", '{"weight_map": {"a": 3}}', outside, elsewhere):
        index.write_text(broken)
        refused(sharded, name if broken is elsewhere else INDEX)
    index.write_text(text)
    shards[0].rename(sharded / "away")
    refused(sharded, str(shards[0]))
    os.mkfifo(shards[0])  # nothing waits on it
    refused(sharded, str(shards[0]))


def test_a_cut_adapter_is_named(single: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_bytes(b"cut")
    with pytest.raises(ConfigError, match=str(adapter)):
        examined(single, f"model.adapter={adapter}")


def test_a_tokenizer_with_more_words_than_the_vocabulary_is_refused(single: Path) -> None:
    file = single / "tokenizer.json"
    settings = json.loads(file.read_text())
    settings["model"]["vocab"]["zebra"] = 5000
    file.write_text(json.dumps(settings))
    refused(single, "zebra", "5000")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No answer is remembered yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "hora" / "engines"


def engine_of(*changes: str) -> Finding:
    [finding] = examine(Target(load("tiny", changes)), [engine])
    return finding


def test_the_class_that_would_run_the_model_is_named_and_asked_for_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = engine_of()
    assert (finding.level, finding.says.rpartition(" ")[2]) == ("ok", "Qwen2ForCausalLM")
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(checked, "MODULE", "no_such_module")  # whoever asks again fails
    assert engine_of() == finding
    assert engine_of("learner.steps=3", "run.name=other") == finding, "the engine does not depend on it"


@pytest.mark.parametrize(
    "change",
    [
        "generator.max_sequences=17",
        "model.trust_remote_code=true",
        "rollout.max_response_tokens=33",
        "run.seed=5",
        "generator.engine_args.quantization=fp8",
    ],
)
def test_what_an_engine_depends_on_is_another_question(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = answer_file(load("tiny"))
    assert before == answer_file(load("tiny"))
    assert answer_file(load("tiny", [change])) != before
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    assert answer_file(load("tiny")) != before


def test_a_model_that_changes_in_its_folder_is_another_question(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(ROOT / "deploy/demo/model", tmp_path / "other"))
    before = answer_file(load("tiny", [f"model.path={folder}"]))
    file = folder / "config.json"
    file.write_text(file.read_text() + " ")
    assert answer_file(load("tiny", [f"model.path={folder}"])) != before
    file.unlink()
    assert answer_file(load("tiny", [f"model.path={folder}"])) is None


def test_a_model_of_no_known_class_and_arguments_that_do_not_fit_are_refused_in_one_line(
    tmp_path: Path, cache: Path
) -> None:
    folder = Path(shutil.copytree(ROOT / "deploy/demo/model", tmp_path / "other"))
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"architectures": ["OtherForTokens"]}))
    for change, word in (
        (f"model.path={folder}", "OtherForTokens"),
        ("generator.engine_args.quantization=unknown", "unknown"),
        ("generator.engine_args.max_logprob=2", "did you mean max_logprobs?"),
    ):
        finding = engine_of(change)
        assert finding.level == "fail"
        assert not cache.exists(), "a refusal is asked for again"
        assert word in finding.says
        assert not any(noise in finding.line for noise in ("\n", "Traceback", "pydantic", "input_value"))


def test_a_process_that_ends_or_hangs_is_a_finding_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load("tiny", [])
    with EngineProcess(Target(config)) as held:
        held._process.kill()
        [finding] = held.engine(Target(config))
    assert (finding.level, "status -9" in finding.says) == ("fail", True)
    monkeypatch.setattr(checked, "ANSWER_S", 0.1)
    began = time.monotonic()
    with EngineProcess(Target(config)) as held:
        [finding] = held.engine(Target(config))
    assert finding.level == "warn"
    assert time.monotonic() - began < 5
    assert not psutil.pid_exists(held._process.pid)


def test_a_cluster_s_engines_are_not_asked_here() -> None:
    assert not list(examine(Target(load("tiny", []), "train"), [engine]))
    with pytest.raises(ConfigError, match="seed"):
        list(engine(Target(load("tiny", ["generator.engine_args.seed=1"]))))
