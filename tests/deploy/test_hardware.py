"""Precision and threads on a machine without GPUs; what is installed for GPUs against what torch, the model
and Triton need. The daemon that lets processes share a card lives as long as its run. It is a stand-in on
PATH here; what it does for a card, only a card shows."""

import json
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from hora_rl.common.config import Config
from hora_rl.common.load import load
from hora_rl.deploy.checks import hardware, machine
from hora_rl.deploy.checks.findings import Target
from hora_rl.deploy.checks.hardware import (
    driver,
    judge_compiler,
    judge_driver,
    mps_daemon,
    precision,
    triton_build,
)
from hora_rl.deploy.checks.run_checks import CHECKS
from hora_rl.deploy.machine import mps
from tests.support.checks import H200
from tests.support.ports import until
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


DAEMON = """#!/bin/bash
at=$CUDA_MPS_PIPE_DIRECTORY
if [ "$1" = -f ]; then
    {first}
    [ -z "$CUDA_VISIBLE_DEVICES" ] && echo $$ > "$at/pid"
    touch "$at/control"
    while true; do sleep 0.05; done
fi
read -r said
[ "${{said%% *}}" = quit ] && {quit}
"""
QUIT = 'kill -9 "$(cat "$at/pid")"'
OWNER = """
import time
from hora_rl.deploy.machine import mps
mps.TRY = ""
with mps.sharing(wanted=True) as why:
    assert not why, why
    print(open(mps.os.environ["CUDA_MPS_PIPE_DIRECTORY"] + "/pid").read().strip(), flush=True)
    time.sleep(60)
"""


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`daemon(first="exit 3")`: a machine whose daemon does this before it serves."""

    def make(first: str = "true", quit_: str = QUIT) -> None:
        file = tmp_path / mps.CONTROL
        file.write_text(DAEMON.format(first=first, quit=quit_))
        file.chmod(0o755)

    make()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(mps, "TRY", "")
    monkeypatch.setattr(mps, "STOP_S", 1)
    return make


@pytest.mark.parametrize("quit_", [QUIT, "exit 0", "sleep 60"], ids=["asked", "by a signal", "after a hang"])
def test_it_ends_with_the_run(daemon: Callable[..., None], quit_: str) -> None:
    daemon(quit_=quit_)
    with mps.sharing(wanted=True) as why:
        assert why == ""
        folder = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
        assert folder.stat().st_mode & 0o77 == 0, "nobody else's processes"
        process = psutil.Process(int((folder / "pid").read_text()))
        assert process.is_running()
    assert not process.is_running()
    assert not folder.exists()
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ


@pytest.mark.usefixtures("daemon")
def test_it_ends_when_the_run_is_killed() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    process = psutil.Process(int(owner.stdout.readline()))
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.parametrize(("first", "reason"), [("exit 3", "status 3"), ("sleep 9", "not ready within 1 s")])
def test_a_daemon_that_does_not_start_leaves_the_run_without_it(
    daemon: Callable[..., None], monkeypatch: pytest.MonkeyPatch, first: str, reason: str
) -> None:
    monkeypatch.setattr(mps, "START_S", 1.0)
    daemon(first=first)
    with mps.sharing(wanted=True) as why:
        assert reason in why
        assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ


@pytest.mark.usefixtures("daemon")
def test_a_daemon_that_gives_no_card_is_ended_before_the_run_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    began = []
    popen = subprocess.Popen

    def noted(*args: object, **named: object) -> object:
        began.append(popen(*args, **named))  # type: ignore[call-overload]
        return began[-1]

    monkeypatch.setattr(mps, "TRY", "raise SystemExit(46)")
    monkeypatch.setattr(mps.subprocess, "Popen", noted)
    with mps.sharing(wanted=True) as why:
        assert "CUDA error 46" in why
        assert began[0].poll() is not None
        assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ


def test_it_is_for_engines_that_use_a_card_at_the_same_time_as_others() -> None:
    shared, turns, alone = (
        load("tiny", [*more, "rollout.max_staleness=0"]).generator
        for more in (["generator.gpus=0.25"], ["generator.gpus=0.5", "generator.sleep=step"], [])
    )
    assert [mps.wanted_by(generator) for generator in (shared, turns, alone)] == [True, False, False]
    with mps.sharing(wanted=False) as why:
        assert why == ""


def test_a_machine_without_it_says_so_before_and_in_a_run(
    daemon: Callable[..., None], cards: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def modes(*settings: str) -> list[str]:
        return [finding.says.partition(":")[0] for finding in mps_daemon(Target(load("tiny", settings)))]

    shared = "generator.gpus=0.25"
    assert not modes(shared), "no card"
    cards(1)
    assert modes(shared) == [
        f"{mps.CONTROL} starts with the run; processes on the card work at the same time"
    ]
    assert not modes()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert modes(shared) == ["off"]
    with mps.sharing(wanted=True) as why:
        assert "not installed" in why
