"""What Triton compiles with is looked for where Triton looks, on machines with GPUs alone."""

import sys
import sysconfig
from pathlib import Path

import pytest

from hora_rl.common.load import load
from hora_rl.deploy.checks import machine
from hora_rl.deploy.checks.findings import Target
from hora_rl.deploy.checks.gpu_software import headers, judge_compiler, triton_build
from hora_rl.deploy.checks.run_checks import CHECKS
from tests.support.checks import one

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


def test_a_machine_without_gpus_needs_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    assert triton_build in CHECKS
    target = Target(load("tiny"))
    monkeypatch.setattr(machine, "gpus", list)
    assert one(triton_build, target) == {}
    monkeypatch.setattr(machine, "gpus", lambda: ["H100, 81559 MiB"])
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("hora_rl.deploy.checks.gpu_software.find_spec", lambda name: object())
    assert one(triton_build, target)["Triton"].level == "fail"


def test_debian_s_headers_are_not_looked_for_under_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_default_scheme", lambda: "posix_local")
    assert headers() == Path(sysconfig.get_paths("posix_prefix")["include"])


def test_the_refusal_names_what_is_missing(tmp_path: Path) -> None:
    missing = {"gcc", f"{PYTHON}-dev"}

    def named(compiler: str | None) -> set[str]:
        return missing & set(judge_compiler(compiler, tmp_path).line.split())

    assert (named(None), named("gcc")) == (missing, {f"{PYTHON}-dev"})
    (tmp_path / "Python.h").touch()
    assert named(None) == {"gcc"}
    assert judge_compiler("gcc", tmp_path).level == "ok"
