"""The acceptance program runs where there is no GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu_acceptance

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_question_is_answered_on_small_shapes() -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "benchmarks.gpu_acceptance", "--small"]
    ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=1180)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-3000:]
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in ran.stdout.splitlines() if "|" in line][2:]
    assert len(rows) == 12
    assert {row[0] for row in rows} == {""}


LOUD = """
import atexit, sys

sys.modules["benchmarks.language_model"] = None
atexit.register(lambda: print("a library's last words", file=sys.stderr))
"""


def test_the_reason_is_what_the_question_raised_and_not_what_a_library_says_at_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(LOUD)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    [line] = gpu_acceptance.lines_of("generation", small=True)
    assert (line.name, line.passed) == ("generation", False)
    assert line.figure.startswith("ModuleNotFoundError: ")
