"""Precision and threads on a machine without GPUs; what is installed for GPUs against what torch, the model
and Triton need."""

import json
import sys
import sysconfig
from pathlib import Path

import pytest

from hora_rl.common.config import Config
from hora_rl.common.load import load
from hora_rl.deploy.checks import hardware, machine
from hora_rl.deploy.checks.findings import Target
from hora_rl.deploy.checks.hardware import driver, judge_compiler, judge_driver, precision, triton_build
from hora_rl.deploy.checks.run_checks import CHECKS
from tests.support.checks import H200
from tests.support.published import write_published

BASE = "model: {path: some/model}\ndata: {path: arithmetic}\n"


@pytest.fixture
def machine_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Settings of a model with `gib` of weights on a machine with `have` processors."""

    def config(*overrides: str, have: int = 2, gib: float = 0.5, flags: str = "avx512_bf16") -> Config:
        path, cpuinfo = tmp_path / "run.yaml", tmp_path / "cpuinfo"
        path.write_text(BASE)
        cpuinfo.write_text(f"model name\t: some\nflags\t\t: fpu {flags} vme\n")
        monkeypatch.setattr(machine, "gpus", list)
        monkeypatch.setattr(machine, "model_gib", lambda path: gib)
        monkeypatch.setattr(hardware, "processors", lambda: have)
        monkeypatch.setattr(hardware, "CPUINFO", cpuinfo)
        return load(str(path), overrides)

    return config


def divided(config: Config, *, trains: bool = True) -> tuple[int, int]:
    chosen = hardware.on_processors(config, trains=trains)
    return chosen.generator.threads, chosen.learner.threads


@pytest.mark.parametrize("have", [1, 2, 3, 16])
def test_generators_and_learner_never_take_more_than_there_is(have: int, machine_of) -> None:
    generator, learner = divided(machine_of(have=have))
    assert generator + learner == max(2, have)
    assert generator >= learner
    assert divided(machine_of("rollout.max_staleness=0", have=have)) == (have, have), "they take turns"
    assert divided(machine_of(have=have), trains=False)[0] == have
    assert divided(machine_of("generator.replicas=2", have=16)) == (4, 8)


def test_a_tiny_model_gets_one_thread_and_what_is_written_stays(machine_of) -> None:
    assert divided(machine_of(have=64, gib=0.003)) == (1, 1)
    assert divided(machine_of("generator.threads=7", have=64)) == (7, 32)
    assert divided(machine_of("run.resources=manual", have=64)) == (1, 1)


def test_the_precision_is_what_the_processors_have(machine_of) -> None:
    for flags, dtype in (("avx512_bf16", "bfloat16"), ("amx_bf16", "bfloat16"), ("avx2", "float32")):
        assert hardware.on_processors(machine_of(flags=flags)).model.dtype == dtype
    assert hardware.on_processors(machine_of("model.dtype=bfloat16", flags="avx2")).model.dtype == "bfloat16"


def levels_of(config: Config) -> dict[str, str]:
    return {f.what: f.level for f in hardware.on_cpu(Target(config))}


TWO = ("generator.threads=2", "learner.threads=2", "model.dtype=float32")


@pytest.mark.parametrize(
    ("settings", "flags", "levels"),
    [
        (TWO, "avx512_bf16", ("warn", "ok")),
        ((*TWO, "rollout.max_staleness=0"), "avx512_bf16", ("ok", "ok")),
        (("model.dtype=bfloat16",), "avx2", ("ok", "warn")),
    ],
)
def test_too_many_threads_and_a_slow_precision_are_warnings(
    settings: tuple[str, ...], flags: str, levels: tuple[str, str], machine_of
) -> None:
    result = levels_of(machine_of(*settings, flags=flags))
    assert (result["threads"], result["model.dtype"]) == levels
    assert set(levels_of(hardware.on_processors(machine_of())).values()) == {"ok"}, "what is chosen"


@pytest.mark.parametrize(
    ("gib", "settings", "tokens"),
    [
        (0.25, (), 1024),  # SmolLM2's, as it was measured
        (0.0, (), 1024),  # unknown
        (0.003, (), 16_384),
        (0.25, ("rollout.max_prompt_tokens=2000",), 2008),
        (0.25, ("learner.tokens_per_microbatch=9000",), 9000),
    ],
)
def test_micro_batches_of_larger_models_are_small_on_processors(
    gib: float, settings: tuple[str, ...], tokens: int, machine_of
) -> None:
    short = ("rollout.max_prompt_tokens=64", "rollout.max_response_tokens=8", *settings)
    config = hardware.on_processors(machine_of(*short, gib=gib))
    assert config.learner.tokens_per_microbatch == tokens


def test_what_vllm_cannot_compute_on_a_cpu_is_refused(machine_of, tmp_path: Path) -> None:
    model = write_published("qwen3.5", tmp_path / "model")
    assert levels_of(machine_of(f"model.path={model}", "model.dtype=float32"))["model.dtype"] == "fail"
    chosen = hardware.on_processors(machine_of(f"model.path={model}", flags="avx2"))
    assert chosen.model.dtype == "bfloat16"
    assert (levels_of(chosen)["model.dtype"], levels_of(chosen)["attention heads"]) == ("ok", "ok")
    settings = json.loads((model / "config.json").read_text())
    settings["text_config"]["head_dim"] = 8
    (model / "config.json").write_text(json.dumps(settings))
    assert levels_of(chosen)["attention heads"] == "fail"


TARGET = Target(load("tiny"))
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


def test_the_driver_is_asked_and_an_old_one_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {driver, precision, triton_build} <= set(CHECKS)
    monkeypatch.setenv("PATH", "/nowhere")
    assert not list(driver(TARGET)), "no driver"
    assert hardware.cuda_version() == "13.0", "the pinned GPU set's"
    program = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    for version, level in (("580.65.06", "ok"), ("575.57.08", "fail")):
        program.write_text(
            f'#!/bin/sh\ncase "$1" in --query-gpu=driver_version) echo {version}; echo {version};; esac\n'
        )
        program.chmod(0o755)
        assert [f.level for f in driver(TARGET)] == [level]


@pytest.mark.parametrize(
    ("version", "cuda", "works", "level"),
    [
        ("535.104.05", "12.9", True, "ok"),
        ("525.60.13", "12.9", False, "ok"),
        ("470.82.01", "12.1", False, "fail"),
        ("535.104.05", "13.0", True, "warn"),
        ("[N/A]", "13.0", False, "warn"),
        ("580.65.06", "", True, "warn"),
        ("580.65.06", "14.0", True, "warn"),
    ],
)
def test_old_fails_unless_torch_finds_the_cards(version: str, cuda: str, works: bool, level: str) -> None:
    assert judge_driver(version, cuda, works=works).level == level


@pytest.mark.parametrize(
    ("card", "dtype", "shown", "refused"),
    [
        ("Tesla T4, 7.5", "bfloat16", "0,1", True),
        ("Tesla T4, 7.5", "bfloat16", "1", False),
        ("Tesla T4, 7.5", "float16", "0,1", False),
        ("NVIDIA B200, 10.0", "bfloat16", "0,1", False),
        ("an old driver", "bfloat16", "0,1", False),
    ],
)
def test_shown_cards_without_the_model_s_precision_are_refused(
    card: str, dtype: str, shown: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    cards = [f"0, GPU-a, {card}", "1, GPU-b, NVIDIA A100, 8.0"]
    monkeypatch.setattr(machine, "ask_driver", lambda fields: cards)
    lines = [f.line for f in precision(Target(load("tiny", [f"model.dtype={dtype}"])))]
    assert bool(lines) is refused
    assert all("Tesla T4 has compute capability 7.5" in line and "float16" in line for line in lines)


def test_triton_needs_a_compiler_and_headers_on_machines_with_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", list)
    assert not list(triton_build(TARGET))
    monkeypatch.setattr(machine, "gpus", lambda: [H200])
    monkeypatch.setattr(hardware, "find_spec", lambda name: object())
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    assert [f.level for f in triton_build(TARGET)] == ["fail"]
    monkeypatch.setattr(sysconfig, "get_default_scheme", lambda: "posix_local")
    assert hardware.headers() == Path(sysconfig.get_paths("posix_prefix")["include"]), "as on Debian"


def test_the_refusal_names_the_packages_that_are_missing(tmp_path: Path) -> None:
    missing = {"gcc", f"{PYTHON}-dev"}

    def named(compiler: str | None) -> set[str]:
        return missing & set(judge_compiler(compiler, tmp_path).line.split())

    assert (named(None), named("gcc")) == (missing, {f"{PYTHON}-dev"})
    (tmp_path / "Python.h").touch()
    assert named(None) == {"gcc"}
    assert judge_compiler("gcc", tmp_path).level == "ok"
