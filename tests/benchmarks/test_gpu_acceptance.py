"""The acceptance program runs where there is no GPU, and where HORA's servers are not installed."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch

from benchmarks import gpu_acceptance

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[2]
# DeepSpeed itself imports msgpack.
WITHOUT = """
import sys
from importlib.abc import MetaPathFinder

ABSENT = {"ray", "vllm", "redis", "structlog", "rich", "typer", "math_verify", "datasets", "peft"}


class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"{name} is not on this machine")


sys.meta_path.insert(0, Absent())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in ABSENT else found(name, package)
"""


@pytest.mark.slow
@pytest.mark.timeout(590)
def test_every_check_runs_on_cpu_with_torch_transformers_deepspeed_and_pydantic_alone(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)  # for the checks' own processes too
    paths = f"{tmp_path}{os.pathsep}{ROOT}"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": paths}
    command = [sys.executable, "-m", "benchmarks.gpu_acceptance", "--small"]
    ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=580)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-3000:]
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in ran.stdout.splitlines() if "|" in line][2:]
    assert {row[0] for row in rows} == {"PASS", "SKIP"}
    names = {"ceilings", "chunked head, float32", "attention kernel", "ZeRO-3 on one rank, norm", "gather"}
    assert names <= {row[1] for row in rows}
    assert [row[:2] for row in rows if row[1] == "LoRA step"] == [["SKIP", "LoRA step"]]


@pytest.mark.slow
@pytest.mark.timeout(590)
def test_a_killed_check_fails_and_the_next_one_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    killed = threading.Thread(target=_kill, args=("attention",))
    killed.start()
    [line] = gpu_acceptance.lines_of("attention", small=True)
    killed.join()
    assert (line.name, line.passed) == ("attention", False)
    assert "-9" in line.figure
    assert [line.passed for line in gpu_acceptance.lines_of("head", small=True)] == [True, True]


LOUD = """
import atexit, sys

sys.modules["hora_rl.learner.head"] = None
atexit.register(lambda: print("a library's last words", file=sys.stderr))
"""


def test_the_reason_is_what_the_check_raised_and_not_what_a_library_says_at_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(LOUD)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    [line] = gpu_acceptance.lines_of("head", small=True)
    assert (line.name, line.passed) == ("head", False)
    assert line.figure.startswith("ModuleNotFoundError: ")


def _kill(check: str) -> None:
    """The process of this check, as soon as it is there."""
    while True:
        for child in psutil.Process().children():
            if check in child.cmdline():
                child.kill()
                return
        time.sleep(0.05)


def test_what_vllm_packs_is_unpacked_over_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself, with streams that wait for nothing: vLLM's own need a GPU."""
    from contextlib import nullcontext

    from vllm.distributed.weight_transfer import packed_tensor

    class Stream:
        def synchronize(self) -> None: ...

    monkeypatch.setattr(packed_tensor, "_get_streams", lambda device, count: (Stream(),) * count)
    monkeypatch.setattr(packed_tensor.torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(packed_tensor.torch.cuda, "stream", lambda stream: nullcontext())
    passed, figure = gpu_acceptance.packed_transfer(2**20, torch.device("cpu"))
    assert passed
    assert int(figure.partition(" ")[0]) >= 4
    broken = gpu_acceptance.StandIn.broadcast
    monkeypatch.setattr(
        gpu_acceptance.StandIn,
        "broadcast",
        lambda self, tensor, src: (broken(self, tensor, src), tensor.zero_() if not self.sends else None),
    )
    passed, _ = gpu_acceptance.packed_transfer(2**20, torch.device("cpu"))
    assert not passed
