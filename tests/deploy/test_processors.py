"""Precision and threads on a machine without GPUs."""

from pathlib import Path

import pytest

from hora_rl.common.config import Config
from hora_rl.common.load import load
from hora_rl.deploy.checks import machine, processors
from hora_rl.deploy.checks.findings import Target
from hora_rl.deploy.checks.memory import run_target

BASE = "model: {path: some/model}\ndata: {path: arithmetic}\n"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Settings of a model with `gib` of weights on a machine with `have` processors."""

    def config(*overrides: str, have: int = 2, gib: float = 0.5, flags: str = "avx512_bf16") -> Config:
        path, cpuinfo = tmp_path / "run.yaml", tmp_path / "cpuinfo"
        path.write_text(BASE)
        cpuinfo.write_text(f"model name\t: some\nflags\t\t: fpu {flags} vme\n")
        monkeypatch.setattr(machine, "gpus", list)
        monkeypatch.setattr(machine, "model_gib", lambda path: gib)
        monkeypatch.setattr(processors, "processors", lambda: have)
        monkeypatch.setattr(processors, "CPUINFO", cpuinfo)
        return load(str(path), overrides)

    return config


def divided(config: Config, *, trains: bool = True) -> tuple[int, int]:
    chosen = processors.on_processors(config, trains=trains)
    return chosen.generator.threads, chosen.learner.threads


@pytest.mark.parametrize("have", [1, 2, 3, 16])
def test_generators_and_learner_never_take_more_than_there_is(have: int, told) -> None:
    generator, learner = divided(told(have=have))
    assert generator + learner == max(2, have)
    assert generator >= learner
    assert divided(told("rollout.max_staleness=0", have=have)) == (have, have), "they take turns"
    assert divided(told(have=have), trains=False)[0] == have
    assert divided(told("generator.replicas=2", have=16)) == (4, 8)


def test_a_tiny_model_gets_one_thread_and_what_is_written_stays(told) -> None:
    assert divided(told(have=64, gib=0.003)) == (1, 1)
    assert divided(told("generator.threads=7", have=64)) == (7, 32)
    assert divided(told("run.resources=manual", have=64)) == (1, 1)


def test_the_precision_is_what_the_processors_have(told) -> None:
    for flags, dtype in (("avx512_bf16", "bfloat16"), ("amx_bf16", "bfloat16"), ("avx2", "float32")):
        assert processors.on_processors(told(flags=flags)).model.dtype == dtype
    assert processors.on_processors(told("model.dtype=bfloat16", flags="avx2")).model.dtype == "bfloat16"


def test_a_check_says_what_was_chosen_and_warns_of_what_is_too_much(told) -> None:
    def levels(config: Config) -> tuple[str, str]:
        target = Target(config)
        [threads], [precision] = processors.threads(target), processors.precision(target)
        return threads.level, precision.level

    assert levels(run_target(told()).config) == ("ok", "ok")
    assert levels(told("generator.threads=2", "learner.threads=2")) == ("warn", "ok")
    turns = told("generator.threads=2", "learner.threads=2", "rollout.max_staleness=0")
    assert levels(turns) == ("ok", "ok")
    assert levels(told("model.dtype=bfloat16", flags="avx2")) == ("ok", "warn")
    assert levels(told("model.dtype=float32")) == ("ok", "ok")
