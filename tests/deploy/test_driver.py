"""The NVIDIA driver against the CUDA of torch, with an `nvidia-smi` that prints what a driver would."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hora_rl.common.load import load
from hora_rl.deploy.checks import machine
from hora_rl.deploy.checks.findings import Target
from hora_rl.deploy.checks.gpu_software import cuda_version, driver, judge_driver, precision
from hora_rl.deploy.checks.run_checks import CHECKS
from tests.support.checks import one

Install = Callable[[str], None]


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts an `nvidia-smi` on PATH that answers a query of the driver's version alone."""

    def install(version: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(
            f'#!/bin/sh\ncase "$1" in --query-gpu=driver_version) echo {version}; echo {version};; esac\n'
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    return install


def found(version: str, install: Install) -> dict[str, str]:
    install(version)
    return {what: finding.level for what, finding in one(driver, Target(load("tiny"))).items()}


def test_the_version_is_read_and_an_old_one_stops_a_run(nvidia_smi: Install) -> None:
    assert cuda_version() == "13.0", "the pinned GPU set's"
    assert found("580.65.06", nvidia_smi) == {"GPU driver": "ok"}
    assert found("575.57.08", nvidia_smi) == {"GPU driver": "fail"}
    assert driver in CHECKS


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


def test_a_machine_without_a_driver_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert one(driver, Target(load("tiny"))) == {}


@pytest.mark.parametrize(
    ("card", "dtype", "refused"),
    [
        ("Tesla T4, 7.5", "bfloat16", True),
        ("Tesla T4, 7.5", "float16", False),
        ("NVIDIA A10, 8.6", "bfloat16", False),
        ("NVIDIA B200, 10.0", "bfloat16", False),
        ("an old driver", "bfloat16", False),
    ],
)
def test_cards_without_the_model_s_precision_are_refused(
    card: str, dtype: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine, "ask_driver", lambda fields: [f"0, GPU-a, {card}", f"1, GPU-b, {card}"])
    found = list(precision(Target(load("tiny", [f"model.dtype={dtype}"]))))
    assert bool(found) is refused
    if refused:
        assert "Tesla T4 has compute capability 7.5" in found[0].line
        assert "use model.dtype: float16" in found[0].line


def test_a_card_that_is_not_shown_is_not_asked_for_its_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = ["0, GPU-a, NVIDIA A100, 8.0", "1, GPU-b, Tesla T4, 7.5"]
    monkeypatch.setattr(machine, "ask_driver", lambda fields: cards)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert list(precision(Target(load("tiny", ["model.dtype=bfloat16"])))) == []
