"""What Triton needs to build the launchers of its kernels, which vLLM and Liger run on GPUs."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from hora_rl.deploy.checks import machine
from hora_rl.deploy.checks.findings import Finding, Target, must


def triton_build(target: Target) -> Iterator[Finding]:
    """Nothing on a machine without GPUs; on others a replica would fail late, in its first start."""
    if machine.gpus() and find_spec("triton") is not None:
        yield judge(os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang"), headers())


def headers() -> Path:
    """Where Triton looks for Python.h."""
    scheme = sysconfig.get_default_scheme()
    scheme = "posix_prefix" if scheme == "posix_local" else scheme  # Debian's own Python
    return Path(sysconfig.get_paths(scheme=scheme)["include"])


def judge(compiler: str | None, include: Path) -> Finding:
    """A failure that names the packages of what is missing."""
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    missing = {
        "C compiler": ("gcc", compiler is None),
        f"{include}/Python.h": (f"{python}-dev", not (include / "Python.h").is_file()),
    }
    says = " and no ".join(what for what, (_, lacks) in missing.items() if lacks)
    packages = " ".join(package for package, lacks in missing.values() if lacks)
    fix = f"apt-get install {packages} (Fedora, RHEL: -devel for -dev)"
    return must(not says, "Triton", f"no {says}" if says else f"{compiler}, {include}/Python.h", fix)
