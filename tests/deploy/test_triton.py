"""What Triton compiles with is looked for where Triton looks, on machines with GPUs alone."""

import sys
import sysconfig
from pathlib import Path

import pytest

from hora_rl.common.load import load
from hora_rl.deploy.preflight import machine
from hora_rl.deploy.preflight.checks import CHECKS
from hora_rl.deploy.preflight.findings import Target
from hora_rl.deploy.preflight.triton import headers, judge, triton_build
from tests.support.preflight import one

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


def test_the_refusal_is_one_line_with_the_packages_that_are_missing(tmp_path: Path) -> None:
    assert judge(None, tmp_path).line == (
        f"Triton: no C compiler and no {tmp_path}/Python.h; apt-get install gcc {PYTHON}-dev (Fedora, RHEL: "
        "-devel for -dev)"
    )
    assert f"install {PYTHON}-dev (" in judge("gcc", tmp_path).line
    (tmp_path / "Python.h").touch()
    assert "install gcc (" in judge(None, tmp_path).line
    assert judge("gcc", tmp_path).level == "ok"


def test_a_machine_without_gpus_needs_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    assert triton_build in CHECKS
    target = Target(load("tiny"))
    monkeypatch.setattr(machine, "gpus", list)
    assert one(triton_build, target) == {}
    monkeypatch.setattr(machine, "gpus", lambda: ["H100, 81559 MiB"])
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("hora_rl.deploy.preflight.triton.find_spec", lambda name: object())
    assert one(triton_build, target)["Triton"].level == "fail"


def test_debian_s_headers_are_not_looked_for_under_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_default_scheme", lambda: "posix_local")
    assert headers() == Path(sysconfig.get_paths("posix_prefix")["include"])
