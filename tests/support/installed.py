"""HORA's wheel, and environments in which it is installed."""

import shutil
import subprocess
import sys
from pathlib import Path

from hora_rl.common.load import ROOT

ROOMS = ("actors", "allocator", "common", "deploy", "evaluation", "learner")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]


def wheel_in(folder: Path) -> Path:
    """The wheel of this checkout, built in `folder`."""
    source = folder / "source"
    shutil.copytree(ROOT / "hora_rl", source / "hora_rl", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)]
    subprocess.run(build, check=True, timeout=200)
    [made] = folder.glob("*.whl")
    return made


def environment_of(folder: Path, *packages: str, python: str = sys.executable) -> tuple[Path, Path]:
    """The bin folder and the packages of an environment with these packages and nothing else."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=100)
    inside = ["--python", str(folder / "bin" / "python")]
    install = [*PIP, *inside, "install", "--no-deps", "--ignore-installed", *packages]
    subprocess.run(install, check=True, timeout=200)
    return folder / "bin", next(folder.glob("lib/python*/site-packages"))
