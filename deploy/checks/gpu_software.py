"""Software for this machine's GPUs: the driver, the model's precision, and Triton's compiler."""

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from hora_rl.common.load import ROOT
from hora_rl.deploy.checks import machine
from hora_rl.deploy.checks.findings import Finding, Target, must, ok, should
from hora_rl.deploy.machine import mps

# Oldest branch of the driver for every minor version of a CUDA release (NVIDIA, "Minor Version
# Compatibility", table 1).
OLDEST = {13: 580, 12: 525, 11: 450}
BFLOAT16 = 8
"""First compute capability with bfloat16 (Ampere)."""


def driver(target: Target) -> Iterator[Finding]:
    """Compare the driver with torch's CUDA. No finding without a driver."""
    import torch

    versions = machine.ask_driver("driver_version")
    if versions:
        yield judge_driver(versions[0], cuda_version(), works=torch.cuda.is_available())


def judge_driver(version: str, cuda: str, *, works: bool) -> Finding:
    """Judge a driver `version` such as 535.104.05. An old driver fails unless torch finds the cards, which
    NVIDIA's forward-compatibility packages allow on some cards."""
    oldest, branch = OLDEST.get(_major(cuda)), _major(version)
    known = oldest is not None and branch > 0
    says = f"{version or 'unknown'}; torch's CUDA {cuda or 'unknown'} needs {oldest or 'unknown'} or newer"
    fix = f"install a driver of branch {oldest}, or see whether torch.cuda.is_available()"
    recent = known and branch >= (oldest or 0)
    return (should if works or not known else must)(recent, "GPU driver", says, fix)


def mps_daemon(target: Target) -> Iterator[Finding]:
    """Whether processes that share a card can use it at the same time. No finding where none do."""
    if target.on_cluster or not machine.gpus() or not mps.wanted_by(target.config.generator):
        return
    on = f"{mps.CONTROL} starts with the run; processes on the card work at the same time"
    off = f"off: {mps.CONTROL}, a part of NVIDIA's driver, is not installed: processes on the card take turns"
    yield ok("MPS", on if mps.installed() else off)


def precision(target: Target) -> Iterator[Finding]:
    """Fail if the cards do not support the model's precision. vLLM would refuse them only after a long
    start."""
    if target.config.model.dtype == "bfloat16" and (old := without_bfloat16()):
        says = f"{old[0]}, and model.dtype bfloat16 needs {BFLOAT16}.0"
        yield must(False, "precision", says, "use model.dtype: float16, or other cards")


def without_bfloat16() -> list[str]:
    """Visible cards without bfloat16 (Turing and older): name and compute capability."""
    cards = (line.rpartition(", ") for line in machine.shown("name,compute_cap"))
    return [f"{name} has compute capability {cap}" for name, _, cap in cards if 0 < _major(cap) < BFLOAT16]


def cuda_version() -> str:
    """CUDA of the installed torch, or of the pinned GPU set for a CPU build."""
    import torch

    toolkit = machine.pinned(ROOT / "requirements" / "gpu.txt").get("cuda-toolkit", "")
    return torch.version.cuda or ".".join(toolkit.split(".")[:2])


def _major(version: str) -> int:
    """The first number of a version; 0 if there is none."""
    first = version.partition(".")[0]
    return int(first) if first.isdigit() else 0


def triton_build(target: Target) -> Iterator[Finding]:
    """Whether Triton can build kernel launchers for vLLM and the learner. No finding without GPUs."""
    if machine.gpus() and find_spec("triton") is not None:
        yield judge_compiler(os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang"), headers())


def headers() -> Path:
    """Folder in which Triton looks for Python.h."""
    scheme = sysconfig.get_default_scheme()
    scheme = "posix_prefix" if scheme == "posix_local" else scheme  # Debian's own Python
    return Path(sysconfig.get_paths(scheme=scheme)["include"])


def judge_compiler(compiler: str | None, include: Path) -> Finding:
    """Fail with the packages to install if the compiler or Python.h is missing."""
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    missing = {
        "C compiler": ("gcc", compiler is None),
        f"{include}/Python.h": (f"{python}-dev", not (include / "Python.h").is_file()),
    }
    says = " and no ".join(what for what, (_, lacks) in missing.items() if lacks)
    packages = " ".join(package for package, lacks in missing.values() if lacks)
    fix = f"apt-get install {packages} (Fedora, RHEL: -devel for -dev)"
    return must(not says, "Triton", f"no {says}" if says else f"{compiler}, {include}/Python.h", fix)
